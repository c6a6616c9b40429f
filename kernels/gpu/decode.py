"""Attention of single new tokens: one program takes the query heads of a key/value head over a piece of a sequence.

Long sequences of small launches are cut into `splits` pieces, which kernels/gpu/combine.py puts together.
B sequences, T packed tokens, Q query heads, S slots, H key/value heads, D head size; in a program G query heads
that share a key/value head, padded to what a tensor core takes, and N keys of a loop turn.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.errors import UsageError
from kvlab.kernels.gpu.checks import check, interpreted
from kvlab.kernels.gpu.combine import combine, piece_tokens
from kvlab.kernels.gpu.config import Config
from kvlab.kernels.gpu.geometry import Blocks, Rows
from kvlab.kernels.gpu.splits import MOST, multiprocessors_of, splits_for
from kvlab.kernels.gpu.tiles import load_tile, slots_of_tile
from kvlab.kernels.gpu.tuning import config_for

LOG2_E = math.log2(math.e)
NO_WINDOW = 2**31 - 1


@triton.jit
def _take(
    top_G, sum_G, out_GD, q_GD, p_k, p_v, o_D, place, first, last, stride_s, scale,
    DIM: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The running softmax after the keys [first, first + TILE), where MASKED without those from `last` on."""
    token_N = first + tl.arange(0, TILE)
    seen_N = token_N < last
    slot_N = slots_of_tile(place, token_N, seen_N, BLOCK, MASKED)
    o_ND = (slot_N * stride_s)[:, None] + o_D[None, :]
    k_ND = load_tile(p_k + o_ND, seen_N, o_D, DIM, MASKED, UPCAST)
    score_GN = tl.dot(q_GD, tl.trans(k_ND), input_precision="ieee") * scale
    if MASKED:
        score_GN = tl.where(seen_N[None, :], score_GN, float("-inf"))
    higher_G = tl.maximum(top_G, tl.max(score_GN, 1))
    weight_GN = tl.exp2(score_GN - higher_G[:, None])
    fade_G = tl.exp2(top_G - higher_G)
    v_ND = load_tile(p_v + o_ND, seen_N, o_D, DIM, MASKED, UPCAST)
    out_GD = tl.dot(weight_GN.to(v_ND.dtype), v_ND, out_GD * fade_G[:, None], input_precision="ieee")
    return higher_G, sum_G * fade_G + tl.sum(weight_GN, 1), out_GD


@triton.jit(do_not_specialize=["window"])
def _decode(
    q_TQD, k_SHD, v_SHD, o_TQD, part_BQPD, log_BQP, table_RP, place_B, length_B, query_B,
    stride_qt, stride_qq, stride_s, stride_h, stride_ot, stride_oq, stride_r, scale, window,
    H: tl.constexpr, G: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Program (b * H + h, piece). BLOCK 0: place_B is a row's first slot; otherwise it is the row of the table."""
    i_b, i_h, i_piece = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H, tl.program_id(1)
    length = tl.load(length_B + i_b)
    seen = tl.minimum(length, window)
    piece = piece_tokens(seen, tl.num_programs(1), TILE)
    first = length - seen + i_piece * piece
    last = tl.minimum(first + piece, length)
    if first >= last:  # padding, or nothing left for this piece
        return
    place = tl.load(place_B + i_b).to(tl.int64)
    if BLOCK > 0:
        place = table_RP + place * stride_r
    token = tl.load(query_B + i_b).to(tl.int64)
    o_G, o_D = tl.arange(0, GROUPS), tl.arange(0, WIDE)
    m_GD = (o_G < G)[:, None] & (o_D < DIM)[None, :]
    head_G = i_h * G + o_G
    q_GD = tl.load(q_TQD + token * stride_qt + (head_G * stride_qq)[:, None] + o_D[None, :], mask=m_GD, other=0.0)
    if UPCAST:
        q_GD = q_GD.to(tl.float32)
    p_k, p_v = k_SHD + i_h.to(tl.int64) * stride_h, v_SHD + i_h.to(tl.int64) * stride_h
    top_G, sum_G = tl.full([GROUPS], float("-inf"), tl.float32), tl.zeros([GROUPS], tl.float32)
    out_GD = tl.zeros([GROUPS, WIDE], tl.float32)
    whole = first + (last - first) // TILE * TILE
    for at in tl.range(first, whole, TILE, num_stages=STAGES):
        top_G, sum_G, out_GD = _take(
            top_G, sum_G, out_GD, q_GD, p_k, p_v, o_D, place, at, last, stride_s, scale,
            DIM, BLOCK, TILE, False, UPCAST,
        )  # fmt: skip
    if whole < last:
        top_G, sum_G, out_GD = _take(
            top_G, sum_G, out_GD, q_GD, p_k, p_v, o_D, place, whole, last, stride_s, scale,
            DIM, BLOCK, TILE, True, UPCAST,
        )  # fmt: skip
    out_GD /= sum_G[:, None]
    if SPLIT:
        part_BQ = (i_b * H * G + head_G) * tl.num_programs(1) + i_piece
        tl.store(log_BQP + part_BQ, top_G + tl.log2(sum_G), mask=o_G < G)
        tl.store(part_BQPD + (part_BQ * DIM)[:, None] + o_D[None, :], out_GD, mask=m_GD)
    else:
        p_GD = o_TQD + token * stride_ot + (head_G * stride_oq)[:, None] + o_D[None, :]
        tl.store(p_GD, out_GD.to(o_TQD.dtype.element_ty), mask=m_GD)


def decode(
    q_TQD: Tensor,
    k_SHD: Tensor,
    v_SHD: Tensor,
    o_TQD: Tensor,
    sequences: Rows | Blocks,
    longest: int,
    scale: float,
    window: int | None = None,
    splits: int | None = None,
    config: Config | None = None,
) -> None:
    """Write o_TQD of each sequence's only new token, which sees the last `window` tokens; of length 0 nothing.

    `longest`: tokens of the longest sequence, or more; only speed depends on it. `splits`: pieces of a sequence,
    by default what fills the device. For one number of pieces the result is the same to the bit, always.
    UsageError: shapes, types, or splits that are not allowed.
    """
    check(q_TQD, k_SHD, v_SHD, o_TQD, sequences, window)
    batch, heads, kv_heads, head_dim = len(sequences.length_B), q_TQD.shape[1], *k_SHD.shape[1:]
    if config is None:
        block_size = sequences.block_size if isinstance(sequences, Blocks) else None
        config = config_for("decode", q_TQD.dtype, head_dim, block_size, heads // kv_heads)
    if splits is None:
        seen = min(longest, window or longest)
        splits = splits_for(batch * kv_heads, seen, config.tile, multiprocessors_of(q_TQD.device))
    if not 1 <= splits <= MOST:
        raise UsageError(f"splits={splits}: allowed are 1 to {MOST}")
    part_BQPD, log_BQP = o_TQD, o_TQD  # nothing is written there
    if splits > 1:
        part_BQPD = torch.empty(batch, heads, splits, head_dim, dtype=torch.float32, device=q_TQD.device)
        log_BQP = torch.empty(batch, heads, splits, dtype=torch.float32, device=q_TQD.device)
    _launch(q_TQD, k_SHD, v_SHD, o_TQD, part_BQPD, log_BQP, sequences, scale, window or NO_WINDOW, splits, config)
    if splits > 1:
        combine(part_BQPD, log_BQP, o_TQD, sequences, config.tile, window or NO_WINDOW)


def _launch(
    q_TQD: Tensor,
    k_SHD: Tensor,
    v_SHD: Tensor,
    o_TQD: Tensor,
    part_BQPD: Tensor,
    log_BQP: Tensor,
    sequences: Rows | Blocks,
    scale: float,
    window: int,
    splits: int,
    config: Config,
) -> None:
    batch, heads, kv_heads, head_dim = len(sequences.length_B), q_TQD.shape[1], *k_SHD.shape[1:]
    table, place_B, stride, block, stages = sequences.length_B, sequences[0], 0, 0, config.stages
    if isinstance(sequences, Blocks):
        table, place_B, stride = sequences.table_RP, sequences.row_B, sequences.table_RP.stride(0)
        block, stages = sequences.block_size, 2 * config.stages - 1  # entries are fetched as far ahead of keys
    _decode[(batch * kv_heads, splits)](
        q_TQD, k_SHD, v_SHD, o_TQD, part_BQPD, log_BQP, table, place_B, sequences.length_B, sequences.query_B,
        *q_TQD.stride()[:2], *k_SHD.stride()[:2], *o_TQD.stride()[:2], stride, scale * LOG2_E, window,
        H=kv_heads, G=heads // kv_heads, GROUPS=max(16, triton.next_power_of_2(heads // kv_heads)),
        DIM=head_dim, WIDE=triton.next_power_of_2(head_dim), BLOCK=block, TILE=config.tile,
        SPLIT=splits > 1, STAGES=stages, UPCAST=q_TQD.dtype == torch.bfloat16 and interpreted(_decode),
        num_warps=config.warps,
    )  # fmt: skip
