"""Memory on demand under addresses reserved for good: each layer's keys and values grow in place.

There are 2 * layers reservations over one physical pool. A page group is one page in each of them; the
pages of one reservation lie side by side in the pool, so that neighbours merge into one mapping:

    pool:  [ reservation 0: page 0, 1 ... page_groups - 1 ][ reservation 1: page 0, 1 ... ] ...
"""

from __future__ import annotations

import torch

from kvlab.errors import UsageError
from kvlab.memory.host_vmm import PAGE_BYTES, PhysicalPool, Reservation, VmmError, round_up
from kvlab.memory.ledger import Ledger
from kvlab.memory.store import Store
from kvlab.moves import Copy, Drop, Map, Move, Unmap


class VirtualStore(Store):
    """Slots have memory only where Map put it. A page need not hold whole tokens."""

    def __init__(
        self,
        layers: int,
        slots: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        page_bytes: int,
        page_groups: int,
    ) -> None:
        if page_bytes <= 0 or page_bytes % PAGE_BYTES:
            raise UsageError(f"page_group_bytes={page_bytes}: allowed are multiples of {PAGE_BYTES}")
        if page_groups < 1:
            raise UsageError(f"a pool of {page_groups} page groups: allowed is 1 or more")
        self._page_bytes, self._page_groups = page_bytes, page_groups
        self._slot_bytes = kv_heads * head_dim * dtype.itemsize
        nbytes = round_up(slots * self._slot_bytes, page_bytes)
        self._pool = PhysicalPool(2 * layers * page_groups * page_bytes)
        self._reservations = [Reservation(nbytes) for _ in range(2 * layers)]
        self.ledger = Ledger(nbytes // page_bytes, page_groups)
        tensors = [place.tensor(dtype, (slots, kv_heads, head_dim)) for place in self._reservations]
        self._layers = list(zip(tensors[:layers], tensors[layers:], strict=True))

    def committed_bytes(self) -> int:
        return self._pool.committed_bytes()

    def accounted_bytes(self) -> int:
        return len(self.ledger.backed) * len(self._reservations) * self._page_bytes

    def close(self) -> None:
        for reservation in self._reservations:
            reservation.close()
        self._layers, self._reservations = [], []
        self._pool.close()

    def _apply(self, move: Move) -> None:
        match move:
            case Map(virtual, physical):
                self._map(virtual, physical)
            case Unmap(virtual):
                self.ledger.check_unmap(virtual)
                self._unmap(virtual, len(self._reservations))
                self.ledger.unmap(virtual)
            case Drop(physical):
                self.ledger.check_drop(physical)
                self._drop(physical, len(self._reservations))
                self.ledger.drop(physical)
            case Copy(source, target, tokens):
                for first in (source, target):
                    self.ledger.check_mapped(self._group(first), self._group(first + tokens, end=True))
                self._copy(move)

    def _map(self, virtual: int, physical: int) -> None:
        self.ledger.check_map(virtual, physical)
        for index, reservation in enumerate(self._reservations):
            try:
                reservation.map(virtual * self._page_bytes, self._pool, self._place(index, physical), self._page_bytes)
            except VmmError:
                self._undo(virtual, physical, index + 1)
                raise
        self.ledger.map(virtual, physical)

    def _undo(self, virtual: int, physical: int, count: int) -> None:
        """Of a map that got as far as `count` reservations, the last of which may have lost its addresses."""
        self._unmap(virtual, count)
        if physical not in self.ledger.backed:
            self._drop(physical, count)

    def _unmap(self, virtual: int, count: int) -> None:
        for reservation in self._reservations[:count]:
            reservation.unmap(virtual * self._page_bytes, self._page_bytes)

    def _drop(self, physical: int, count: int) -> None:
        for index in range(count):
            self._pool.drop(self._place(index, physical), self._page_bytes)

    def _place(self, reservation: int, physical: int) -> int:
        """Bytes into the pool."""
        return (reservation * self._page_groups + physical) * self._page_bytes

    def _group(self, slot: int, end: bool = False) -> int:
        """The virtual page group of a slot's first byte, or of the byte before it."""
        return (slot * self._slot_bytes - end) // self._page_bytes
