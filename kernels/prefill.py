"""Attention of pieces of several new tokens, prompts or chunks of them: all of a launch in C, or one in torch.

Both geometries and layouts hand the same numbers in the same order, so the results are the same to the bit.
N tokens of a sequence, T new ones among them (the last), Q query heads, H key/value heads, D head size; a pool is
k_SHD or k_UHWD, see pool.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlab.kernels.compiler import CompileError, in_torch, load
from kvlab.kernels.pool import heads_of, pool_of, take
from kvlab.memory.view import Blocks, View, slots_of

ELEMENTS = {torch.float32: "FLOAT32", torch.bfloat16: "BFLOAT16"}
ITEM_ROWS = 192  # queries times heads that share what is packed of the keys and values
CHUNK = 512  # queries behind a prefix that share one mask [CHUNK, N]


def queries_per_item(groups: int) -> int:
    """New tokens in one item of the C kernel's work, at most."""
    return max(1, ITEM_ROWS // groups)


@cache
def kernel(dtype: torch.dtype, head_dim: int, groups: int) -> Callable[..., int] | None:
    """The C function; None where there is none for that type, or it cannot be compiled, which is said once."""
    if dtype not in ELEMENTS:
        return None
    sizes = {"HEAD_DIM": head_dim, "GROUPS": groups, "QUERIES": queries_per_item(groups)}
    defines = (ELEMENTS[dtype], *(f"{name}={size}" for name, size in sizes.items()))
    try:
        function = load(Path(__file__).with_name("prefill.c"), defines).attend_prefill
    except CompileError as error:
        in_torch("attention of prompts runs", error)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [
        *[pointer] * 4, *[number] * 2, *[pointer] * 4, *[number] * 2, pointer, *[number] * 2, ctypes.c_double,
        ctypes.c_int,
    ]  # fmt: skip
    function.restype = ctypes.c_int
    return function


def prefill_all(
    function: Callable[..., int],
    q_TQD: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    o_TQD: Tensor,
    view: View,
    shortest: int,
    scale: float,
    window: int | None = None,
) -> None:
    """Write o_TQD of all pieces of at least `shortest` new tokens, through the C function.

    window: last tokens that a query sees, itself included; None: all.
    """
    assert k_pool.stride() == v_pool.stride(), "keys and values are laid out alike"
    assert q_TQD.is_contiguous(), "queries are packed"
    if isinstance(view, Blocks):
        start, table, width, block_size = None, view.table_BP.data_ptr(), view.table_BP.shape[1], view.block_size
    else:
        start, table, width, block_size = view.start_B.data_ptr(), None, 0, 1
    failed = function(
        q_TQD.data_ptr(), k_pool.data_ptr(), v_pool.data_ptr(), o_TQD.data_ptr(), len(view.new_B), shortest,
        view.new_B.data_ptr(), view.length_B.data_ptr(), start, table, width, block_size,
        ctypes.byref(pool_of(k_pool)), heads_of(k_pool), window or 0, scale, torch.get_num_threads(),
    )  # fmt: skip
    if failed:
        raise MemoryError(f"no memory to list the work of {len(view.new_B)} sequences")


def prefill(q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: View, index: int, scale: float) -> Tensor:
    """o_TQD of the sequence that is `index`-th in the view, in torch; q_TQD are its new tokens alone."""
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
