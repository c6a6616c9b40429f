"""`attention=sdpa`: what torch brings.

On a CPU scaled_dot_product_attention, a sequence at a time, over its row in place or over a gathered copy of its
blocks. On a CUDA device torch's FlashAttention-2 (flash2.py).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvlab.engine.attentions.flash2 import Flash2
from kvlab.kernels.prefill import prefill
from kvlab.memory import view
from kvlab.memory.view import View


class Sdpa:
    """On a CPU. It takes every shape, element type and geometry."""

    make_view = staticmethod(view.make_view)
    tiles = True  # it reads head-major pools too

    def on(self, device: str) -> Sdpa | Flash2:
        return self if device == "cpu" else Flash2(device)

    def attend(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: View, scale: float) -> Tensor:
        o_TQD, new_B = torch.empty_like(q_TQD), view.new_B.numpy()
        stop_B = np.cumsum(new_B, dtype=np.int64)
        for index in np.flatnonzero(new_B).tolist():
            tokens = slice(stop_B[index] - new_B[index], stop_B[index])
            o_TQD[tokens] = prefill(q_TQD[tokens], k_SHD, v_SHD, view, index, scale)
        return o_TQD

    def kernel_name(self, dtype: torch.dtype, head_dim: int, groups: int) -> str:
        return "torch sdpa, a sequence at a time; rows in place, blocks gathered"
