"""Attention of a launch on a GPU, over either geometry: single new tokens through one kernel, more through another."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.kernels.gpu.decode import decode
from kvlab.kernels.gpu.geometry import View
from kvlab.kernels.gpu.prefill import prefill


def attend(q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: View, scale: float, window: int | None = None) -> Tensor:
    """o_TQD: packed query t sees the tokens of its sequence up to its own position, the last `window` of them.

    Never reads a slot outside [0, length) of a sequence, nor a table entry beyond its last. UsageError: shapes or
    types that the kernels do not take.
    """
    o_TQD = torch.empty_like(q_TQD)
    if view.decode is not None:
        sequences, longest, _ = view.decode
        decode(q_TQD, k_SHD, v_SHD, o_TQD, sequences, longest, scale, window)
    if view.prefill is not None:
        sequences, longest, most = view.prefill
        prefill(q_TQD, k_SHD, v_SHD, o_TQD, sequences, most, longest, scale, window)
    return o_TQD
