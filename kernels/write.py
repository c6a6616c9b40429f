"""Put new keys and values into their slots."""

from __future__ import annotations

from torch import Tensor


def write(k_SHD: Tensor, v_SHD: Tensor, slot_T: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
    """Token t's key and value go to slot slot_T[t] (int64, each at most once)."""
    k_SHD.index_copy_(0, slot_T, k_THD)
    v_SHD.index_copy_(0, slot_T, v_THD)
