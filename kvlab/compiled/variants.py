"""The committed list of kernels to compile: which shapes, for which architectures, and what is excused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kvlab.errors import UsageError

ARCHS = (80, 90, 100)
MOST = 120  # kernels x architectures: the list stays one that can be compiled on every change


@dataclass(frozen=True)
class Variant:
    """One launch. kernel: decode, prefill, append or copy. block_size None: rows. groups: query heads a kv head."""

    kernel: str
    dtype: str
    head_dim: int
    block_size: int | None = None
    groups: int = 4

    def __str__(self) -> str:
        place = "rows" if self.block_size is None else f"blocks of {self.block_size}"
        return f"{self.kernel} {self.dtype} {self.head_dim} x {self.groups}, {place}"


class Listed(NamedTuple):
    """spills: why this variant may spill; empty: it may not."""

    variant: Variant
    archs: tuple[int, ...]
    spills: str


def read(path: Path) -> list[Listed]:
    """UsageError: the list cannot be read, names a variant twice, or is longer than a list may be."""
    try:
        listed = [_listed(**entry) for entry in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path}: not a list of variants ({error})") from error
    if twice := [variant for variant, count in Counter(item.variant for item in listed).items() if count > 1]:
        raise UsageError(f"{path}: listed twice: {twice[0]}")
    if (count := sum(len(item.archs) for item in listed)) > MOST:
        raise UsageError(f"{path}: {count} variants x architectures; allowed is {MOST} or fewer")
    return listed


def _listed(archs: Iterable[int] = ARCHS, spills: str = "", **fields: Any) -> Listed:
    if wrong := set(archs) - set(ARCHS):
        raise ValueError(f"sm_{wrong.pop()}: allowed is {', '.join(f'sm_{arch}' for arch in ARCHS)}")
    return Listed(Variant(**fields), tuple(archs), spills)
