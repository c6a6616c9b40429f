"""Attention of single query tokens through the C kernel: decode.c compiled for one element type and shape.

T packed tokens, Q query heads, S slots, H key/value heads, D head size, B sequences, N queries; a pool is k_SHD or
k_UHWD, see pool.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.kernels.compiler import CompileError, in_torch, load
from kvlab.kernels.pool import heads_of, pool_of
from kvlab.memory.view import Blocks, View

POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int64
ELEMENTS = {torch.float32: "FLOAT32", torch.float64: "FLOAT64", torch.bfloat16: "BFLOAT16"}


class Queries(NamedTuple):
    """Single queries, wherever they lie in a launch."""

    sequence_N: NDArray[np.int64]  # index in the view
    token_N: NDArray[np.int64]  # packed token
    seen_N: NDArray[np.int32]  # leading tokens of the sequence that it sees, itself the last


class CQueries(ctypes.Structure):
    """`struct queries` of decode.c."""

    _fields_ = (
        ("sequence", POINTER), ("token", POINTER), ("count", NUMBER), ("seen", POINTER), ("window", NUMBER),
        ("start", POINTER), ("table", POINTER), ("width", NUMBER), ("block_size", NUMBER), ("kv_heads", NUMBER),
        ("pool", POINTER), ("scale", ctypes.c_double), ("threads", NUMBER),
    )  # fmt: skip


def queries_of(view: View, longest: int) -> Queries:
    """The queries of all pieces of at most `longest` new tokens."""
    new_B, length_B = view.new_B.numpy(), view.length_B.numpy()
    if (new_B == 1).all():  # every step that only decodes
        index_B = np.arange(len(new_B))
        return Queries(index_B, index_B, length_B)
    sequence_T = np.repeat(np.arange(len(new_B)), new_B)
    token_N = np.flatnonzero(new_B[sequence_T] <= longest)
    sequence_N = sequence_T[token_N]
    left_N = np.cumsum(new_B, dtype=np.int64)[sequence_N] - token_N  # tokens of the piece from this one on
    return Queries(sequence_N, token_N, (length_B[sequence_N] - left_N + 1).astype(np.int32))


@cache
def kernel(dtype: torch.dtype, head_dim: int, groups: int) -> tuple[Callable[..., None] | None, str]:
    """The C function and "c" with its instruction set; or None and "torch: " with the reason, which is said once."""
    try:
        if dtype not in ELEMENTS:
            raise CompileError(f"no C kernel for {dtype}")
        defines = (ELEMENTS[dtype], f"HEAD_DIM={head_dim}", f"GROUPS={groups}")
        library = load(Path(__file__).with_name("decode.c"), defines)
    except CompileError as error:
        in_torch("decode attention runs", error)
        return None, f"torch: {error}"
    function = library.attend_decode
    function.argtypes, function.restype = [POINTER] * 5, None
    library.instruction_set.argtypes, library.instruction_set.restype = [], ctypes.c_char_p
    return function, f"c, {library.instruction_set().decode()}"


class Decoding:
    """Attention of some queries of a launch. What its layers have in common is put together once."""

    def __init__(
        self,
        function: Callable[..., None],
        k_pool: Tensor,
        view: View,
        queries: Queries,
        scale: float,
        window: int | None = None,
    ) -> None:
        """k_pool: any of those that will be read. Each query sees the last `window` tokens up to its own, or all."""
        if isinstance(view, Blocks):
            start, table, width, block_size = None, view.table_BP.data_ptr(), view.table_BP.shape[1], view.block_size
        else:
            start, table, width, block_size = view.start_B.data_ptr(), None, 0, 1
        self._stride, pool = k_pool.stride(), pool_of(k_pool)
        self._kept = CQueries(
            *(x_N.ctypes.data for x_N in queries[:2]), len(queries.seen_N), queries.seen_N.ctypes.data, window or 0,
            start, table, width, block_size, heads_of(k_pool), ctypes.addressof(pool), scale, torch.get_num_threads(),
        ), view, queries, pool  # fmt: skip
        self._function, self._queries = function, ctypes.byref(self._kept[0])

    def __call__(self, q_TQD: Tensor, k_pool: Tensor, v_pool: Tensor, o_TQD: Tensor) -> None:
        """Write o_TQD of those queries."""
        assert k_pool.stride() == v_pool.stride() == self._stride, "keys and values are laid out alike"
        assert q_TQD.is_contiguous(), "queries are packed"
        self._function(self._queries, q_TQD.data_ptr(), k_pool.data_ptr(), v_pool.data_ptr(), o_TQD.data_ptr())
