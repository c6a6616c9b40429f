"""Attention of one sequence's new tokens in torch: a prompt, a chunk of one, or a single token.

Both geometries hand torch tensors of the same shape and strides, so the results are the same to the bit.
N tokens of the sequence, T new ones among them (the last), Q query heads, H key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlab.kernels.pool import take
from kvlab.memory.view import Blocks, View, slots_of

CHUNK = 512  # queries behind a prefix that share one mask [CHUNK, N]


def prefill(q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: View, index: int, scale: float) -> Tensor:
    """o_TQD of the sequence that is `index`-th in the view; q_TQD are its new tokens alone."""
    k_NHD, v_NHD = _gathered(k_SHD, v_SHD, view, index)
    tokens, new = len(k_NHD), len(q_TQD)
    if new == 1:
        return _single(q_TQD[0], k_NHD, v_NHD, scale)[None]
    if new == tokens:
        return _attend(q_TQD, k_NHD, v_NHD, None, scale)
    parts = []
    for first in range(0, new, CHUNK):
        q_CQD = q_TQD[first : first + CHUNK]
        seen = tokens - new + first + len(q_CQD)
        mask_CN = torch.ones(len(q_CQD), seen, dtype=torch.bool).tril(seen - len(q_CQD))
        parts.append(_attend(q_CQD, k_NHD[:seen], v_NHD[:seen], mask_CN, scale))
    return torch.cat(parts)


def _gathered(k_SHD: Tensor, v_SHD: Tensor, view: View, index: int) -> tuple[Tensor, Tensor]:
    """k_NHD, v_NHD: the sequence's own slots in order; a row is read in place, where its slots lie side by side."""
    if isinstance(view, Blocks) or k_SHD.dim() == 4:
        slot_N = slots_of(view, index)
        return take(k_SHD, slot_N), take(v_SHD, slot_N)
    start, stop = int(view.start_B[index]), int(view.start_B[index] + view.length_B[index])
    return k_SHD[start:stop], v_SHD[start:stop]


def _attend(q_TQD: Tensor, k_NHD: Tensor, v_NHD: Tensor, mask_TN: Tensor | None, scale: float) -> Tensor:
    q_QTD, k_HND, v_HND = (x.transpose(0, 1)[None] for x in (q_TQD, k_NHD, v_NHD))
    o_QTD = scaled_dot_product_attention(
        q_QTD, k_HND, v_HND, attn_mask=mask_TN, is_causal=mask_TN is None, scale=scale, enable_gqa=True
    )
    return o_QTD[0].transpose(0, 1)


def _single(q_QD: Tensor, k_NHD: Tensor, v_NHD: Tensor, scale: float) -> Tensor:
    """The queries of a key/value head go as rows of one: with enable_gqa bfloat16 is five times slower."""
    q_HGD = q_QD.view(k_NHD.shape[1], -1, q_QD.shape[-1])[None]
    k_HND, v_HND = (x.transpose(0, 1)[None] for x in (k_NHD, v_NHD))
    return scaled_dot_product_attention(q_HGD, k_HND, v_HND, scale=scale).reshape(q_QD.shape)
