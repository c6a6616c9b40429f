"""Memory as a server without virtual-memory tricks has it: one allocation, all of it there from the start."""

from __future__ import annotations

from contextlib import ExitStack, closing

import torch

from kvlab.memory.host_vmm import PhysicalPool, Reservation, round_up
from kvlab.memory.store import Store
from kvlab.moves import Copy, Move


class DenseStore(Store):
    """[2, L, S, H, D], every byte committed by the constructor. VmmError: refused, and nothing is left of it."""

    def __init__(self, layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self._nbytes = round_up(2 * layers * slots * kv_heads * head_dim * dtype.itemsize)
        with ExitStack() as opened:
            self._pool = opened.enter_context(closing(PhysicalPool(self._nbytes)))
            reservation = opened.enter_context(closing(Reservation(self._nbytes)))
            reservation.map(0, self._pool, 0, self._nbytes)
            self._opened = opened.pop_all()
        k_LSHD, v_LSHD = reservation.tensor(dtype, (2, layers, slots, kv_heads, head_dim))
        self._layers = list(zip(k_LSHD, v_LSHD, strict=True))

    def committed_bytes(self) -> int:
        return self._pool.committed_bytes()

    def accounted_bytes(self) -> int:
        return self._nbytes

    def close(self) -> None:
        self._layers, self._nbytes = [], 0
        self._opened.close()

    def _apply(self, move: Move) -> None:
        assert isinstance(move, Copy), f"{move}: a dense store has nothing to map"
        self._copy(move)
