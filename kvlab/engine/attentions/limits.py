"""What other people's attention kernels take, so that a run that cannot work is refused before anything is loaded.

Nothing here imports torch or the packages themselves. What our own kernels take on a GPU their launchers check.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from kvlab.errors import UsageError

ON_A_CPU = "kvlab, sdpa"
DTYPES = ("bfloat16", "float16")  # of every kernel below; nobody's takes float32


class Limits(NamedTuple):
    """Of one kernel on a CUDA device."""

    head_dims: tuple[int, ...]
    head_words: str
    block_multiple: int = 1  # block sizes are multiples of it
    module: str = ""  # what it is imported as; empty: it comes with torch
    install: str = ""


_EIGHTS, _EIGHTS_WORDS = tuple(range(8, 257, 8)), "multiples of 8 up to 256"
LIMITS = {
    "kvlab.engine.attentions.sdpa.Sdpa": Limits(_EIGHTS, _EIGHTS_WORDS),
    "kvlab.engine.attentions.flash_attn.FlashAttn": Limits(
        _EIGHTS, _EIGHTS_WORDS, 256, "flash_attn", "pip install flash-attn --no-build-isolation"
    ),
    "kvlab.engine.attentions.flashinfer.FlashInfer": Limits(
        (64, 128, 256), "64, 128, 256", 1, "flashinfer", "pip install flashinfer-python"
    ),
}


def check(node: Mapping[str, Any], device: str, dtype: str, block_size: int | None, head_dim: int) -> None:
    """UsageError: the kernel that the node `attention` names cannot run so; block_size None: over rows."""
    limits, given = LIMITS.get(str(node.get("_target_"))), f"attention={node.get('name', node.get('_target_'))}"
    if limits is None or not (limits.module or device.startswith("cuda")):
        return
    check_package(given, limits, device)
    if dtype not in DTYPES:
        raise UsageError(f"{given} on device=cuda with dtype={dtype}: allowed is {', '.join(DTYPES)}")
    if head_dim not in limits.head_dims:
        raise UsageError(f"{given} with heads of {head_dim}: allowed are {limits.head_words}")
    check_block_size(given, limits, block_size)


def check_package(given: str, limits: Limits, device: str) -> None:
    """UsageError: it runs on CUDA devices only, or is not installed."""
    if not device.startswith("cuda"):
        raise UsageError(
            f"{given}: it needs device=cuda, and its package ({limits.install}); "
            f"allowed with device={device} is {ON_A_CPU}"
        )
    if limits.module and find_spec(limits.module) is None:
        raise UsageError(f"{given}: it is not installed; {limits.install}")


def check_block_size(given: str, limits: Limits, block_size: int | None) -> None:
    if block_size is not None and block_size % limits.block_multiple:
        raise UsageError(
            f"{given} with block_size={block_size}: allowed are multiples of {limits.block_multiple}, "
            "or a strategy of rows"
        )
