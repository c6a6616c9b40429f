"""Causal attention of many new tokens, whole prompts or chunks behind a prefix, over their sequences' own slots.

One program takes a tile of queries: neighbouring tokens, each with all query heads of one key/value head, so that
a key is read once for all of them. The keys that every query of the tile sees need no mask and are taken first.

B sequences, T packed tokens, Q query heads, S slots, H key/value heads, D head size; in a program M queries
(pairs of a token and a head) and N keys of a loop turn.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.errors import UsageError
from kvlab.kernels.gpu.checks import check, interpreted
from kvlab.kernels.gpu.config import Config
from kvlab.kernels.gpu.geometry import Blocks, Rows
from kvlab.kernels.gpu.tiles import load_tile, slots_of_tile
from kvlab.kernels.gpu.tuning import config_for

LOG2_E = math.log2(math.e)
LONGEST = 2**30  # tokens, and new tokens times query heads: positions are counted in 32 bits


@triton.jit
def _take(
    top_M, sum_M, out_MD, q_MD, position_M, p_k, p_v, o_D, place, first, last, dead, stride_s, scale,
    DIM: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, STAGES: tl.constexpr,
    MASKED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The running softmax after the keys [first, last), without `dead` leading ones that the window left behind.

    Not MASKED: whole tiles, of which every query sees all.
    """
    for at in tl.range(first, last, TILE, num_stages=STAGES):
        token_N = at + tl.arange(0, TILE)
        within_N = token_N < last
        if WINDOW > 0:
            within_N = within_N & (token_N >= dead)
        slot_N = slots_of_tile(place, token_N, within_N, BLOCK, MASKED)
        o_ND = (slot_N * stride_s)[:, None] + o_D[None, :]
        k_ND = load_tile(p_k + o_ND, within_N, o_D, DIM, MASKED, UPCAST)
        score_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee") * scale
        if MASKED:
            seen_MN = token_N[None, :] <= position_M[:, None]
            if WINDOW > 0:
                seen_MN = seen_MN & (token_N[None, :] > position_M[:, None] - WINDOW)
            score_MN = tl.where(seen_MN, score_MN, float("-inf"))
        higher_M = tl.maximum(top_M, tl.max(score_MN, 1))
        base_M = higher_M
        if MASKED and WINDOW > 0:  # a query may see nothing of its tile's first keys
            base_M = tl.where(higher_M == float("-inf"), 0.0, higher_M)
        weight_MN = tl.exp2(score_MN - base_M[:, None])
        fade_M = tl.exp2(top_M - base_M)
        v_ND = load_tile(p_v + o_ND, within_N, o_D, DIM, MASKED, UPCAST)
        out_MD = tl.dot(weight_MN.to(v_ND.dtype), v_ND, out_MD * fade_M[:, None], input_precision="ieee")
        sum_M = sum_M * fade_M + tl.sum(weight_MN, 1)
        top_M = higher_M
    return top_M, sum_M, out_MD


@triton.jit
def _prefill(
    q_TQD, k_SHD, v_SHD, o_TQD, table_RP, place_B, length_B, query_B, new_B,
    stride_qt, stride_qq, stride_s, stride_h, stride_ot, stride_oq, stride_r, scale,
    G: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
    QUERIES: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Program (tile, h, b). BLOCK 0: place_B is a row's first slot; otherwise it is the row of the table."""
    i_m = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # the last tokens see most: they begin first
    i_h, i_b = tl.program_id(1), tl.program_id(2)
    new = tl.load(new_B + i_b)
    if i_m // G >= new:
        return
    place = tl.load(place_B + i_b).to(tl.int64)
    if BLOCK > 0:
        place = table_RP + place * stride_r
    o_M, o_D = i_m + tl.arange(0, QUERIES), tl.arange(0, WIDE)
    token_M, head_M = o_M // G, i_h * G + o_M % G
    prefix = tl.load(length_B + i_b) - new
    lowest = prefix + i_m // G
    highest = prefix + tl.minimum((i_m + QUERIES - 1) // G, new - 1)
    position_M = tl.minimum(prefix + token_M, highest)  # queries beyond the last token are not stored
    m_MD = (token_M < new)[:, None] & (o_D < DIM)[None, :]
    packed_M = tl.load(query_B + i_b).to(tl.int64) + token_M
    p_q = q_TQD + (packed_M * stride_qt + head_M * stride_qq)[:, None] + o_D[None, :]
    q_MD = tl.load(p_q, mask=m_MD, other=0.0)
    if UPCAST:
        q_MD = q_MD.to(tl.float32)
    p_k, p_v = k_SHD + i_h.to(tl.int64) * stride_h, v_SHD + i_h.to(tl.int64) * stride_h
    top_M, sum_M = tl.full([QUERIES], float("-inf"), tl.float32), tl.zeros([QUERIES], tl.float32)
    out_MD = tl.zeros([QUERIES, WIDE], tl.float32)
    # keys:  first ..(the window's edge, masked).. edge ..(seen by all).. whole ..(the diagonal, masked).. highest
    # Tiles begin at multiples of TILE, so that a query's result does not depend on its neighbours.
    dead, edge, whole = 0, 0, (lowest + 1) // TILE * TILE
    if WINDOW > 0:
        dead = tl.maximum(lowest + 1 - WINDOW, 0)
        first = dead // TILE * TILE
        edge = tl.cdiv(tl.maximum(highest + 1 - WINDOW, 0), TILE) * TILE
        edge = tl.minimum(edge, whole)
        top_M, sum_M, out_MD = _take(
            top_M, sum_M, out_MD, q_MD, position_M, p_k, p_v, o_D, place, first, edge, dead, stride_s, scale,
            DIM, BLOCK, TILE, WINDOW, STAGES, True, UPCAST,
        )  # fmt: skip
    top_M, sum_M, out_MD = _take(
        top_M, sum_M, out_MD, q_MD, position_M, p_k, p_v, o_D, place, edge, whole, dead, stride_s, scale,
        DIM, BLOCK, TILE, WINDOW, STAGES, False, UPCAST,
    )  # fmt: skip
    top_M, sum_M, out_MD = _take(
        top_M, sum_M, out_MD, q_MD, position_M, p_k, p_v, o_D, place, whole, highest + 1, dead, stride_s, scale,
        DIM, BLOCK, TILE, WINDOW, STAGES, True, UPCAST,
    )  # fmt: skip
    p_o = o_TQD + (packed_M * stride_ot + head_M * stride_oq)[:, None] + o_D[None, :]
    tl.store(p_o, (out_MD / sum_M[:, None]).to(o_TQD.dtype.element_ty), mask=m_MD)


def prefill(
    q_TQD: Tensor,
    k_SHD: Tensor,
    v_SHD: Tensor,
    o_TQD: Tensor,
    part: Rows | Blocks,
    most: int,
    longest: int,
    scale: float,
    window: int | None = None,
    config: Config | None = None,
) -> None:
    """Write o_TQD of each sequence's new tokens: each sees the tokens up to its own, the last `window` of them.

    `most`: new tokens of the sequence with the most, or more; `longest`: tokens of the longest, or more. A token's
    result is the same to the bit in any chunk and whoever shares the launch. A sequence without new tokens sits
    out. UsageError: shapes, types or bounds that are not allowed.
    """
    check(q_TQD, k_SHD, v_SHD, o_TQD, part, window)
    batch, (heads, kv_heads, head_dim) = len(part.length_B), (q_TQD.shape[1], *k_SHD.shape[1:])
    groups = heads // kv_heads
    if not 0 <= most <= longest < LONGEST or most * groups >= LONGEST:
        raise UsageError(f"most={most} of longest={longest} tokens: allowed is 0 <= most <= longest < {LONGEST}")
    if most * batch == 0:
        return
    if isinstance(part, Blocks):
        table, place_B, stride, block = part.table_RP, part.row_B, part.table_RP.stride(0), part.block_size
    else:
        table, place_B, stride, block = part.length_B, part.start_B, 0, 0  # nothing is read of a table
    config = config or config_for("prefill", q_TQD.dtype, head_dim, block or None, groups)
    stages = 2 * config.stages - 1 if block else config.stages  # entries are fetched as far ahead of keys
    _prefill[(triton.cdiv(most * groups, config.queries), kv_heads, batch)](
        q_TQD, k_SHD, v_SHD, o_TQD, table, place_B, part.length_B, part.query_B, part.new_B,
        *q_TQD.stride()[:2], *k_SHD.stride()[:2], *o_TQD.stride()[:2], stride, scale * LOG2_E,
        G=groups, DIM=head_dim, WIDE=triton.next_power_of_2(head_dim), BLOCK=block, WINDOW=window or 0,
        QUERIES=config.queries, TILE=config.tile, STAGES=stages,
        UPCAST=q_TQD.dtype == torch.bfloat16 and interpreted(_prefill), num_warps=config.warps,
    )  # fmt: skip
