"""Pools of keys or values in either layout: what a C kernel is told of one, and how torch reads and writes slots.

token_major is a tensor k_SHD, its slots perhaps apart; head_major is k_UHWD: U tiles of W slots (a power of
two), in which a head's slots lie side by side. A slot has the same number in both.
S slots, H key/value heads, D head size, N slots picked.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

from torch import Tensor


class Pool(ctypes.Structure):
    """`struct pool` of pool.h; strides in elements."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("shift", "mask", "tile_stride", "head_stride", "slot_stride"))


def pool_of(kv: Tensor) -> Pool:
    """How `kv`, k_SHD or k_UHWD, is laid out."""
    return _pool(tuple(kv.shape), kv.stride())


@lru_cache(256)
def _pool(shape: tuple[int, ...], stride: tuple[int, ...]) -> Pool:
    assert stride[-1] == 1, "the elements of a slot's head lie side by side"
    if len(shape) == 3:
        return Pool(0, 0, stride[0], stride[1], stride[0])
    width = shape[2]
    assert width & (width - 1) == 0, f"a tile has {width} slots, not a power of two"
    return Pool(width.bit_length() - 1, width - 1, *stride[:3])


def pool_shape(slots: int, kv_heads: int, head_dim: int, tile: int) -> tuple[int, ...]:
    """Of the tensor with so many slots, rounded up to whole tiles; tile 1: token-major."""
    assert tile > 0, f"a tile of {tile} slots"
    if tile == 1:
        return slots, kv_heads, head_dim
    return -(-slots // tile), kv_heads, tile, head_dim


def tile_of(kv: Tensor) -> int:
    """Slots in a tile; 1: token-major."""
    return 1 if kv.dim() == 3 else kv.shape[2]


def heads_of(kv: Tensor) -> int:
    """Key/value heads."""
    return kv.shape[1]


def slots_in(kv: Tensor) -> int:
    """Slots in all."""
    return kv.shape[0] if kv.dim() == 3 else kv.shape[0] * kv.shape[2]


def take(kv: Tensor, slot_N: Tensor) -> Tensor:
    """x_NHD, a copy of those slots (int64)."""
    if kv.dim() == 3:
        return kv.index_select(0, slot_N)
    width = kv.shape[2]
    return kv[slot_N // width, :, slot_N % width]


def put(kv: Tensor, slot_N: Tensor, x_NHD: Tensor) -> None:
    """Write those slots (int64, each at most once)."""
    if kv.dim() == 3:
        kv.index_copy_(0, slot_N, x_NHD)
        return
    width = kv.shape[2]
    kv[slot_N // width, :, slot_N % width] = x_NHD
