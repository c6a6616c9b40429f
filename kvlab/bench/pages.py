"""Tensors in pages of a known size: with larger ones memory is read faster, so a comparison needs the same.

THP are Linux's transparent huge pages, of 2 MiB.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from kvlab.errors import UsageError

if TYPE_CHECKING:  # whoever names pages in a help text needs no torch
    import torch
    from torch import Tensor

PAGES = ("4k", "thp")
HUGE_BYTES = 2 << 20
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def check(pages: str) -> None:
    """UsageError: this machine has no such pages."""
    if pages == "thp" and not _has_huge():
        raise UsageError("pages=thp: this machine has no transparent huge pages; allowed here is 4k")


def empty(shape: tuple[int, ...], dtype: torch.dtype, pages: str) -> Tensor:
    """A tensor that begins with a page; nothing of it is touched yet."""
    import torch

    nbytes = torch.Size(shape).numel() * dtype.itemsize
    memory = mmap.mmap(-1, nbytes + HUGE_BYTES)
    if _has_huge():  # else all are small
        memory.madvise(mmap.MADV_HUGEPAGE if pages == "thp" else mmap.MADV_NOHUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    first = -whole.data_ptr() % HUGE_BYTES
    return whole[first : first + nbytes].view(dtype).view(shape)


def _has_huge() -> bool:
    return _SETTING.exists() and "[never]" not in _SETTING.read_text()
