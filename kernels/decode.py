"""Attention of single query tokens through the C kernel: decode.c compiled for one element type and shape.

T packed tokens, Q query heads, S slots, H key/value heads, D head size, B sequences, N pieces.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kvlab.kernels.compiler import CompileError, load
from kvlab.memory.view import Blocks, View

ELEMENTS = {torch.float32: "FLOAT32", torch.float64: "FLOAT64", torch.bfloat16: "BFLOAT16"}


@cache
def kernel(dtype: torch.dtype, head_dim: int, groups: int) -> tuple[Callable[..., None] | None, str]:
    """The C function and "c"; or None and "torch: " with the reason, which is logged once."""
    try:
        if dtype not in ELEMENTS:
            raise CompileError(f"no C kernel for {dtype}")
        defines = (ELEMENTS[dtype], f"HEAD_DIM={head_dim}", f"GROUPS={groups}")
        function = load(Path(__file__).with_name("decode.c"), defines).attend_decode
    except CompileError as error:
        logging.getLogger(__name__).warning("decode attention runs in torch, several times slower: %s", error)
        return None, f"torch: {error}"
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [*[pointer] * 6, number, *[pointer] * 3, *[number] * 4, ctypes.c_double, ctypes.c_int]
    function.restype = None
    return function, "c"


def decode(
    function: Callable[..., None],
    q_TQD: Tensor,
    k_SHD: Tensor,
    v_SHD: Tensor,
    o_TQD: Tensor,
    view: View,
    piece_N: Tensor,
    token_N: Tensor,
    scale: float,
) -> None:
    """Write o_TQD[token_N] for the sequences piece_N of the view, one query each (int64)."""
    kv_heads, head_dim = k_SHD.shape[1:]
    assert k_SHD.stride() == v_SHD.stride() == (k_SHD.stride(0), head_dim, 1), "keys and values are laid out alike"
    assert q_TQD.is_contiguous(), "queries are packed"
    if isinstance(view, Blocks):
        start, table, width, block_size = None, view.table_BP.data_ptr(), view.table_BP.shape[1], view.block_size
    else:
        start, table, width, block_size = view.start_B.data_ptr(), None, 0, 1
    function(
        q_TQD.data_ptr(), k_SHD.data_ptr(), v_SHD.data_ptr(), o_TQD.data_ptr(),
        piece_N.data_ptr(), token_N.data_ptr(), len(piece_N), view.length_B.data_ptr(),
        start, table, width, block_size, kv_heads, k_SHD.stride(0), scale, torch.get_num_threads(),
    )  # fmt: skip
