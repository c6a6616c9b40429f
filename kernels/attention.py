"""Attention of a launch on the CPU, over either geometry: each sequence by itself, whoever shares the launch.

Pieces of a few tokens go through one C kernel, longer ones through another, all of each in one call. Without a C
compiler everything goes through torch, a sequence at a time, and `kernel_name` says so.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvlab.kernels.decode import decode, kernel, queries_of
from kvlab.kernels.prefill import kernel as prefill_kernel
from kvlab.kernels.prefill import prefill, prefill_all
from kvlab.memory.view import View

# New tokens of a piece that go through the kernel for single queries: it computes the same for a token alone or in a
# piece. The other one computes the same however a prompt is cut into longer pieces, but sums in another order. In
# float64 speed does not count, and everything goes through the first.
SHORT = 8
SHORT_FLOAT64 = 1 << 30


def attend(q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: View, scale: float, compiled: bool = True) -> Tensor:
    """o_TQD: packed query t sees the tokens of its sequence up to its own position.

    Never reads a slot outside [0, length) of a sequence, nor a table entry beyond its last. compiled=False
    leaves the C kernel out.
    """
    head_dim, groups = q_TQD.shape[2], q_TQD.shape[1] // k_SHD.shape[1]
    function = kernel(q_TQD.dtype, head_dim, groups)[0] if compiled else None
    q_TQD = q_TQD.contiguous()
    o_TQD = torch.empty_like(q_TQD)
    shortest = 1
    if function is not None:
        short = SHORT_FLOAT64 if q_TQD.dtype == torch.float64 else SHORT
        decode(function, q_TQD, k_SHD, v_SHD, o_TQD, view, queries_of(view, short), scale)
        shortest = short + 1
    new_B = view.new_B.numpy()
    if new_B.max(initial=0) < shortest:
        return o_TQD
    longer = prefill_kernel(q_TQD.dtype, head_dim, groups) if compiled else None
    if longer is not None:
        prefill_all(longer, q_TQD, k_SHD, v_SHD, o_TQD, view, shortest, scale)
        return o_TQD
    stop_B = np.cumsum(new_B, dtype=np.int64)
    for index in np.flatnonzero(new_B >= shortest).tolist():
        tokens = slice(stop_B[index] - new_B[index], stop_B[index])
        o_TQD[tokens] = prefill(q_TQD[tokens], k_SHD, v_SHD, view, index, scale)
    return o_TQD


def kernel_name(dtype: torch.dtype = torch.float32, head_dim: int = 64, groups: int = 3) -> str:
    """What decode runs through for that shape: "c", or "torch: " and why."""
    return kernel(dtype, head_dim, groups)[1]
