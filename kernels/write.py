"""Put new keys and values into their slots: through the C kernel on a CPU, through torch where it is not to be had.

T new tokens, H key/value heads, D head size; a pool is k_SHD or k_UHWD, see pool.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kvlab.kernels.compiler import CompileError, load
from kvlab.kernels.pool import pool_of, put


def write(k_pool: Tensor, v_pool: Tensor, slot_T: Tensor, k_THD: Tensor, v_THD: Tensor, compiled: bool = True) -> None:
    """Token t's key and value go to slot slot_T[t] (int64, each at most once). compiled=False leaves C out."""
    function = kernel() if compiled and k_pool.is_cpu else None
    if function is None:
        put(k_pool, slot_T, k_THD)
        put(v_pool, slot_T, v_THD)
        return
    assert k_pool.stride() == v_pool.stride(), "keys and values are laid out alike"
    assert k_pool.dtype == v_pool.dtype == k_THD.dtype == v_THD.dtype, "new keys and values have the pool's type"
    assert slot_T.is_contiguous(), "slots are packed"
    k_THD, v_THD = _packed(k_THD), _packed(v_THD)
    size, (tokens, heads, head_dim) = k_pool.element_size(), k_THD.shape
    function(
        k_pool.data_ptr(), v_pool.data_ptr(), ctypes.byref(pool_of(k_pool)), slot_T.data_ptr(), tokens,
        k_THD.data_ptr(), v_THD.data_ptr(), k_THD.stride(0) * size, v_THD.stride(0) * size,
        heads, head_dim * size, size, torch.get_num_threads(),
    )  # fmt: skip


@cache
def kernel() -> Callable[..., None] | None:
    """The C function; None where there is no compiler, which decode.py has said by then."""
    try:
        function = load(Path(__file__).with_name("write.c"), ()).write_slots
    except CompileError:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [*[pointer] * 4, number, *[pointer] * 2, *[number] * 5, ctypes.c_int]
    function.restype = None
    return function


def _packed(x_THD: Tensor) -> Tensor:
    """With a token's heads side by side; tokens may lie apart, as in a slice of a model's projection."""
    return x_THD if x_THD.stride()[1:] == (x_THD.shape[2], 1) else x_THD.contiguous()
