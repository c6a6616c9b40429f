"""Attention of a launch on the CPU, over either geometry: each sequence by itself, whoever shares the launch.

Single queries go through the C kernel, all in one call; longer pieces through torch, one by one. Without a
C compiler everything goes through torch, and `kernel_name` says so.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvlab.kernels.decode import decode, kernel
from kvlab.kernels.prefill import prefill
from kvlab.memory.view import View


def attend(q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: View, scale: float, compiled: bool = True) -> Tensor:
    """o_TQD: packed query t sees the tokens of its sequence up to its own position.

    Never reads a slot outside [0, length) of a sequence, nor a table entry beyond its last. compiled=False
    leaves the C kernel out.
    """
    head_dim, groups = q_TQD.shape[2], q_TQD.shape[1] // k_SHD.shape[1]
    function = kernel(q_TQD.dtype, head_dim, groups)[0] if compiled else None
    q_TQD = q_TQD.contiguous()
    o_TQD = torch.empty_like(q_TQD)
    new_B = view.new_B.numpy()
    first_B = np.cumsum(new_B, dtype=np.int64) - new_B  # packed tokens before each sequence
    pieces = np.flatnonzero(new_B)
    if function is not None:
        single_N = np.flatnonzero(new_B == 1)
        token_N = torch.from_numpy(first_B[single_N])
        decode(function, q_TQD, k_SHD, v_SHD, o_TQD, view, torch.from_numpy(single_N), token_N, scale)
        pieces = np.flatnonzero(new_B > 1)
    for index in pieces.tolist():
        tokens = slice(first_B[index], first_B[index] + new_B[index])
        o_TQD[tokens] = prefill(q_TQD[tokens], k_SHD, v_SHD, view, index, scale)
    return o_TQD


def kernel_name(dtype: torch.dtype = torch.float32, head_dim: int = 64, groups: int = 3) -> str:
    """What single queries of that shape run through: "c", or "torch: " and why."""
    return kernel(dtype, head_dim, groups)[1]
