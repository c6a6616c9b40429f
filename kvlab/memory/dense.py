"""Memory as a server without virtual-memory tricks has it: one allocation, all of it there from the start."""

from __future__ import annotations

import torch

from kvlab.memory.host_vmm import PhysicalPool, Reservation, round_up
from kvlab.memory.store import Store
from kvlab.moves import Copy, Move


class DenseStore(Store):
    """[2, L, S, H, D], every byte committed by the constructor."""

    def __init__(self, layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self._nbytes = round_up(2 * layers * slots * kv_heads * head_dim * dtype.itemsize)
        self._pool, self._reservation = PhysicalPool(self._nbytes), Reservation(self._nbytes)
        self._reservation.map(0, self._pool, 0, self._nbytes)
        k_LSHD, v_LSHD = self._reservation.tensor(dtype, (2, layers, slots, kv_heads, head_dim))
        self._layers = list(zip(k_LSHD, v_LSHD, strict=True))

    def committed_bytes(self) -> int:
        return self._pool.committed_bytes()

    def accounted_bytes(self) -> int:
        return self._nbytes

    def close(self) -> None:
        self._layers, self._nbytes = [], 0
        self._reservation.close()
        self._pool.close()

    def _apply(self, move: Move) -> None:
        assert isinstance(move, Copy), f"{move}: a dense store has nothing to map"
        self._copy(move)
