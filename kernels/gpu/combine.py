"""The second half of split decode: the pieces of each sequence put together, in their order.

B sequences, T packed tokens, Q query heads, P pieces, D head size.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kvlab.kernels.gpu.geometry import Blocks, Rows


@triton.jit
def piece_tokens(length, splits, TILE: tl.constexpr):
    """Tokens of each piece of so many seen tokens: whole tiles. The last ones may be left with less, or none."""
    return tl.cdiv(tl.cdiv(length, TILE), splits) * TILE


@triton.jit(do_not_specialize=["splits", "window"])
def _combine(
    part_BQPD, log_BQP, o_TQD, length_B, query_B, stride_ot, stride_oq, splits, window,
    Q: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """part_BQPD is normalised in itself; log_BQP is the binary logarithm of the weight it stands for."""
    i_bq = tl.program_id(0).to(tl.int64)
    length = tl.load(length_B + i_bq // Q)
    if length == 0:
        return
    seen = tl.minimum(length, window)
    pieces = tl.cdiv(seen, piece_tokens(seen, splits, TILE))
    o_D = tl.arange(0, WIDE)
    top, total, out_D = float("-inf"), 0.0, tl.zeros([WIDE], tl.float32)
    for first in range(0, pieces, TURN):
        o_P = first + tl.arange(0, TURN)
        m_P = o_P < pieces
        log_P = tl.load(log_BQP + i_bq * splits + o_P, mask=m_P, other=float("-inf"))
        p_PD = part_BQPD + ((i_bq * splits + o_P) * DIM)[:, None] + o_D[None, :]
        part_PD = tl.load(p_PD, mask=m_P[:, None] & (o_D < DIM)[None, :], other=0.0)
        higher = tl.maximum(top, tl.max(log_P, 0))
        weight_P, fade = tl.exp2(log_P - higher), tl.exp2(top - higher)
        total = total * fade + tl.sum(weight_P, 0)
        out_D = out_D * fade + tl.sum(part_PD * weight_P[:, None], 0)
        top = higher
    token = tl.load(query_B + i_bq // Q).to(tl.int64)
    p_D = o_TQD + token * stride_ot + (i_bq % Q) * stride_oq + o_D
    tl.store(p_D, (out_D / total).to(o_TQD.dtype.element_ty), mask=o_D < DIM)


def combine(
    part_BQPD: Tensor, log_BQP: Tensor, o_TQD: Tensor, sequences: Rows | Blocks, tile: int, window: int
) -> None:
    """Write o_TQD of the sequences' only new tokens; nothing of those of length 0."""
    batch, heads, splits, head_dim = part_BQPD.shape
    _combine[(batch * heads,)](
        part_BQPD, log_BQP, o_TQD, sequences.length_B, sequences.query_B, o_TQD.stride(0), o_TQD.stride(1), splits,
        window, Q=heads, DIM=head_dim, WIDE=triton.next_power_of_2(head_dim), TILE=tile, TURN=8, num_warps=4,
    )  # fmt: skip
