"""Memory on demand under addresses reserved for good: keys and values grow in place.

There is one reservation for each layer's keys and one for its values; or, sliced, one for the keys and one for
the values of all layers, side by side in a slot. A page group is one page in each reservation, all from one
physical pool, in which the pages of a reservation lie together, so that neighbours merge into one mapping:

    pool:  [ reservation 0: page 0, 1 ... page_groups - 1 ][ reservation 1: page 0, 1 ... ] ...
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing

import torch
from torch import Tensor

from kvlab.errors import UsageError
from kvlab.kernels.pool import pool_shape
from kvlab.memory.host_vmm import VmmError, round_up
from kvlab.memory.ledger import Ledger
from kvlab.memory.store import Store
from kvlab.memory.vmm import HOST, Vmm
from kvlab.moves import Copy, Drop, Map, Move, SwapIn, SwapOut, Unmap


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
        sliced: bool = False,
        vmm: Vmm = HOST,
        tile: int = 1,
    ) -> None:
        """`vmm` is closed with the store, or here where the store cannot be made.

        tile: slots in a head-major tile, a power of two, which are mapped together; 1: token-major.
        """
        together = layers if sliced else 1  # layers in one reservation
        places = 2 * layers // together
        self._page_bytes, self._page_groups, self._tile = page_bytes, page_groups, tile
        self._slot_bytes = together * kv_heads * head_dim * dtype.itemsize
        with ExitStack() as opened:
            self._vmm = opened.enter_context(closing(vmm))
            vmm.check_page(page_bytes, layers * kv_heads * head_dim * dtype.itemsize)
            if page_groups < 1:
                raise UsageError(f"a pool of {page_groups} page groups: allowed is 1 or more")
            nbytes = round_up(round_up(slots, tile) * self._slot_bytes, page_bytes)
            self._pool = opened.enter_context(closing(vmm.pool(places * page_groups * page_bytes, page_bytes)))
            self._reservations = [
                opened.enter_context(closing(vmm.reservation(nbytes, page_bytes))) for _ in range(places)
            ]
            self._background = opened.enter_context(ThreadPoolExecutor(1, "kvlab-mapping"))
            tiles, *inner = pool_shape(slots, kv_heads, head_dim, tile)  # or slots, where they are by themselves
            tensors = [place.tensor(dtype, (tiles, together, *inner)) for place in self._reservations]
            opened.callback(vmm.settle)
            self._opened = opened.pop_all()
        self._begun: Future[None] | None = None
        self.ledger = Ledger(nbytes // page_bytes, page_groups)
        if vmm.ahead:
            self.ledger.back_all()
        pools: list[Tensor] = [pool for tensor in tensors for pool in tensor.unbind(1)]
        self._layers = list(zip(pools[:layers], pools[layers:], strict=True))

    def apply(self, moves: list[Move]) -> None:
        self.join()
        self._vmm.mark()
        super().apply(moves)

    def apply_beside(self, moves: list[Move]) -> None:
        self.join()
        if moves:
            self._begun = self._background.submit(self._apply_in_thread, moves)

    def join(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()

    def committed_bytes(self) -> int:
        return self._pool.committed_bytes()

    def accounted_bytes(self) -> int:
        return len(self.ledger.backed) * len(self._reservations) * self._page_bytes

    def close(self) -> None:
        self._background.shutdown()  # whatever it was doing: all of it goes now
        self._layers, self._copies, self._host, self._reservations = [], None, None, []
        self.ledger.close()
        self._opened.close()

    def _apply_in_thread(self, moves: list[Move]) -> None:
        self._vmm.enter_thread()
        super().apply(moves)

    def _apply(self, move: Move) -> None:
        match move:
            case Map(virtual, physical):
                self._map(virtual, physical)
            case Unmap(virtual):
                self._unmap(virtual)
            case Drop(physical):
                self.ledger.check_drop(physical)
                self._drop_pages(physical, len(self._reservations))
                self.ledger.drop(physical)
            case SwapOut(place, _, tokens) | SwapIn(_, place, tokens):
                self._check_mapped(tokens, place)
                self._swap(move)
                self._vmm.mark()  # the device may be at it still

    def _copy_all(self, moves: list[Copy]) -> None:
        for move in moves:
            self._check_mapped(move.tokens, move.source, move.target)
        super()._copy_all(moves)
        self._vmm.mark()

    def _check_mapped(self, tokens: int, *firsts: int) -> None:
        for first in firsts:
            start, stop = first // self._tile * self._tile, round_up(first + tokens, self._tile)
            self.ledger.check_mapped(self._group(start), self._group(stop, end=True))

    def _map(self, virtual: int, physical: int) -> None:
        self.ledger.check_map(virtual, physical)
        for index in range(len(self._reservations)):
            try:
                self._map_page(index, virtual, physical)
            except VmmError:  # the last page may have lost its addresses: undone like the others
                self._unmap_pages(virtual, index + 1)
                if physical not in self.ledger.backed:
                    self._drop_pages(physical, index + 1)
                raise
        self.ledger.map(virtual, physical)

    def _unmap(self, virtual: int) -> None:
        self.ledger.check_unmap(virtual)
        self._vmm.wait()
        try:
            self._unmap_pages(virtual, len(self._reservations))
        except VmmError:
            for index in range(len(self._reservations)):
                self._map_page(index, virtual, self.ledger.physical[virtual])
            raise
        self.ledger.unmap(virtual)

    def _map_page(self, index: int, virtual: int, physical: int) -> None:
        page = self._page_bytes
        self._reservations[index].map(virtual * page, self._pool, self._place(index, physical), page)

    def _unmap_pages(self, virtual: int, count: int) -> None:
        for reservation in self._reservations[:count]:
            reservation.unmap(virtual * self._page_bytes, self._page_bytes)

    def _drop_pages(self, physical: int, count: int) -> None:
        for index in range(count):
            self._pool.drop(self._place(index, physical), self._page_bytes)

    def _place(self, reservation: int, physical: int) -> int:
        """Bytes into the pool."""
        return (reservation * self._page_groups + physical) * self._page_bytes

    def _group(self, slot: int, end: bool = False) -> int:
        """The virtual page group of a slot's first byte, or of the byte before it."""
        return (slot * self._slot_bytes - end) // self._page_bytes
