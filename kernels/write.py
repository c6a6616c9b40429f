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

from kvlab.kernels.compiler import CompileError, in_torch, load
from kvlab.kernels.pool import pool_of, put


class CTokens(ctypes.Structure):
    """`struct tokens` of write.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("pool", "slot")),
        *((name, ctypes.c_int64) for name in ("count", "k_stride", "v_stride", "heads", "head_bytes")),
        *((name, ctypes.c_int64) for name in ("element_bytes", "threads")),
    )


class Writing:
    """The new keys and values of a launch. What its layers have in common is put together once."""

    def __init__(self, k_pool: Tensor, slot_T: Tensor, k_THD: Tensor, v_THD: Tensor, compiled: bool = True) -> None:
        """k_pool, k_THD, v_THD: any layer's. Token t goes to slot slot_T[t] (int64, each at most once).

        compiled=False leaves C out.
        """
        assert slot_T.is_contiguous(), "slots are packed"
        assert slot_T.dtype == torch.int64, "C reads slots of 8 bytes"
        self._function, self._slot_T = kernel() if compiled and k_pool.is_cpu else None, slot_T
        self._strides, self._packed = _strides(k_pool, k_THD, v_THD), _is_packed(k_THD) and _is_packed(v_THD)
        k_THD, v_THD = self._pack(k_THD, v_THD)
        size, (tokens, heads, head_dim) = k_pool.element_size(), k_THD.shape
        self._pool = pool_of(k_pool)
        self._c = CTokens(
            ctypes.addressof(self._pool), slot_T.data_ptr(), tokens, k_THD.stride(0) * size, v_THD.stride(0) * size,
            heads, head_dim * size, size, torch.get_num_threads(),
        )  # fmt: skip
        self._tokens = ctypes.byref(self._c)

    def __call__(self, k_pool: Tensor, v_pool: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        """Those of one layer."""
        if self._function is None:
            put(k_pool, self._slot_T, k_THD)
            put(v_pool, self._slot_T, v_THD)
            return
        assert k_pool.stride() == v_pool.stride(), "keys and values are laid out alike"
        assert _strides(k_pool, k_THD, v_THD) == self._strides, "layers are laid out alike"
        assert k_pool.dtype == v_pool.dtype == k_THD.dtype == v_THD.dtype, "new keys and values have the pool's type"
        k_THD, v_THD = self._pack(k_THD, v_THD)
        self._function(self._tokens, k_pool.data_ptr(), v_pool.data_ptr(), k_THD.data_ptr(), v_THD.data_ptr())

    def _pack(self, k_THD: Tensor, v_THD: Tensor) -> tuple[Tensor, Tensor]:
        """With a token's heads side by side; tokens may lie apart, as in a slice of a model's projection."""
        return (k_THD, v_THD) if self._packed else (k_THD.contiguous(), v_THD.contiguous())


def write(k_pool: Tensor, v_pool: Tensor, slot_T: Tensor, k_THD: Tensor, v_THD: Tensor, compiled: bool = True) -> None:
    """Token t's key and value go to slot slot_T[t] (int64, each at most once). compiled=False leaves C out."""
    Writing(k_pool, slot_T, k_THD, v_THD, compiled)(k_pool, v_pool, k_THD, v_THD)


@cache
def kernel() -> Callable[..., None] | None:
    """The C function; None where it cannot be compiled, which is said once."""
    try:
        function = load(Path(__file__).with_name("write.c"), ()).write_slots
    except CompileError as error:
        in_torch("new keys and values are written", error)
        return None
    function.argtypes, function.restype = [ctypes.c_void_p] * 5, None
    return function


def _is_packed(x_THD: Tensor) -> bool:
    return x_THD.stride()[1:] == (x_THD.shape[2], 1)


def _strides(*tensors: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tensor.stride() for tensor in tensors)
