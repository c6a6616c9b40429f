"""The truth for every attention kernel: each query by itself, in float64, from the slots the view names.

T new tokens, Q query heads, D head size; a pool is k_SHD or k_UHWD, see pool.py. Slow and short on purpose.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.kernels.pool import take
from kvlab.memory.view import View, slots_of


def attend(
    q_TQD: Tensor, k_pool: Tensor, v_pool: Tensor, view: View, scale: float, window: int | None = None
) -> Tensor:
    """o_TQD in float64: query t sees the tokens of its sequence up to its own position, the last `window` of them."""
    o_TQD = torch.empty(q_TQD.shape, dtype=torch.float64)
    token = 0
    for index, (length, new) in enumerate(zip(view.length_B.tolist(), view.new_B.tolist(), strict=True)):
        slot_N = slots_of(view, index)
        for position in range(length - new, length):
            seen_N = slot_N[: position + 1][-(window or position + 1) :]
            o_TQD[token] = _one(
                q_TQD[token].double(), take(k_pool, seen_N).double(), take(v_pool, seen_N).double(), scale
            )
            token += 1
    return o_TQD


def _one(q_QD: Tensor, k_NHD: Tensor, v_NHD: Tensor, scale: float) -> Tensor:
    groups = len(q_QD) // k_NHD.shape[1]  # query heads that share a key/value head
    k_NQD, v_NQD = k_NHD.repeat_interleave(groups, 1), v_NHD.repeat_interleave(groups, 1)
    weight_NQ = torch.softmax((k_NQD * q_QD).sum(-1) * scale, 0)
    return (weight_NQ[..., None] * v_NQD).sum(0)
