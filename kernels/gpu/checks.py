"""What the GPU's attention kernels take, checked once for each kind of launch."""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor

from kvlab.errors import UsageError
from kvlab.kernels.gpu.geometry import Blocks, Rows

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_DIM, LARGEST_BLOCK, LARGEST_GROUPS = 256, 256, 64


def check(
    q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, o_TQD: Tensor, sequences: Rows | Blocks, window: int | None
) -> None:
    """UsageError: a kernel cannot take these tensors; names what was given and what is allowed."""
    block_size = sequences.block_size if isinstance(sequences, Blocks) else 1
    dtypes = (q_TQD.dtype, k_SHD.dtype, v_SHD.dtype, o_TQD.dtype)
    _check(dtypes, q_TQD.shape[1:], k_SHD.shape[1:], block_size, window)
    if v_SHD.shape != k_SHD.shape or v_SHD.stride() != k_SHD.stride():
        raise UsageError(f"keys {_laid(k_SHD)} and values {_laid(v_SHD)}: allowed are two that are laid out alike")
    if o_TQD.shape != q_TQD.shape:
        raise UsageError(f"an output of shape {tuple(o_TQD.shape)}: allowed is that of the queries, {q_TQD.shape}")
    for name, x in (("queries", q_TQD), ("keys", k_SHD), ("output", o_TQD)):
        if x.stride(2) != 1:
            raise UsageError(f"{name} {_laid(x)}: allowed are heads that are contiguous, a last stride of 1")


def interpreted(kernel: object) -> bool:
    """Whether the kernel runs under Triton's interpreter, whose arithmetic in bfloat16 is wrong."""
    return not isinstance(kernel, triton.JITFunction)


@cache
def _check(
    dtypes: tuple[torch.dtype, ...], q_QD: torch.Size, k_HD: torch.Size, block_size: int, window: int | None
) -> None:
    if len(set(dtypes)) > 1 or dtypes[0] not in DTYPES:
        raise UsageError(f"queries, keys, values, output of {_names(dtypes)}: allowed is one of {_names(DTYPES)}")
    if q_QD[1] != k_HD[1] or q_QD[1] % 16 or not 16 <= q_QD[1] <= LARGEST_DIM:
        raise UsageError(f"heads of {q_QD[1]} and {k_HD[1]}: allowed is one multiple of 16, at most {LARGEST_DIM}")
    if q_QD[0] % k_HD[0] or not 1 <= q_QD[0] // k_HD[0] <= LARGEST_GROUPS:
        raise UsageError(
            f"{q_QD[0]} query heads over {k_HD[0]} key/value heads: allowed is 1 to {LARGEST_GROUPS} times as many"
        )
    if block_size & (block_size - 1) or not 1 <= block_size <= LARGEST_BLOCK:
        raise UsageError(f"block_size={block_size}: allowed on a GPU are powers of two from 1 to {LARGEST_BLOCK}")
    if window is not None and window < 1:
        raise UsageError(f"window={window}: allowed is 1 or more, or none")


def _laid(x: Tensor) -> str:
    return f"of shape {tuple(x.shape)}, strides {x.stride()}"


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype)[6:] for dtype in dtypes)
