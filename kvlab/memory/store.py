"""Where keys and values lie: a store owns the memory of all layers and carries out a strategy's moves.

Every layer's keys and values are pools that stay the same for the store's whole life; only what backs them
changes. A pool is token-major, k_SHD, or head-major, k_UHWD: U tiles of W slots, in which a head's slots lie side
by side. S slots, H key/value heads, D head size. The host's slots are token-major.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import groupby

from torch import Tensor

from kvlab.kernels.copy import copy_all
from kvlab.memory.host import HostMemory
from kvlab.moves import Copy, Move, SwapIn, SwapOut

Layers = list[tuple[Tensor, Tensor]]  # the pools of keys and of values of each
Copies = Callable[[list[Copy]], None]


class Store(ABC):
    """The keys and values of one pool."""

    _layers: Layers
    _copies: Copies | None = None  # None: as kernels/copy.py does it
    _host: HostMemory | None = None  # None: nothing is swapped

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of that layer: the same tensors for the store's whole life, dead after close."""
        return self._layers[index]

    def apply(self, moves: list[Move]) -> None:
        """Carry out the moves in order. VmmError: that move did nothing, those before it are done.

        Copies that follow one another go together, and nothing is done where one cannot be.
        """
        for move in moves:
            assert move.pool == 0, f"{move}: the store has one pool"
        for copies, group in groupby(moves, lambda move: isinstance(move, Copy)):
            if copies:
                self._copy_all([move for move in group if isinstance(move, Copy)])
            else:
                for move in group:
                    self._apply(move)

    def copy_all_with(self, make: Callable[[Layers], Copies]) -> None:
        """From here on copies go through what `make` makes of all layers."""
        self._copies = make(self._layers)

    def open_host(self, slots: int) -> None:
        """Room on the host for so many tokens, until `close`. VmmError: there is too little memory."""
        self._host = HostMemory(self._layers, slots)

    def host_bytes(self) -> int:
        """Of the host's slots; they are there from `open_host` on, used or not. 0 after close."""
        return self._host.nbytes if self._host else 0

    def apply_beside(self, moves: list[Move]) -> None:
        """Begin to carry out, while the caller goes on, moves that no launch since the last `apply` can notice.

        Nor any until `join`. On a device it may be called before or behind the launch that goes on meanwhile.
        """
        self.apply(moves)

    def join(self) -> None:  # noqa: B027 (where apply_beside does nothing in the background)
        """Wait until what was begun is done. VmmError: one of those moves did nothing, nor any after it."""

    @abstractmethod
    def committed_bytes(self) -> int:
        """What the operating system says is backed; 0 after close."""

    @abstractmethod
    def accounted_bytes(self) -> int:
        """What must be backed after the moves so far."""

    @abstractmethod
    def close(self) -> None:
        """Give all memory back; a second time does nothing."""

    @abstractmethod
    def _apply(self, move: Move) -> None: ...

    def _copy_all(self, moves: list[Copy]) -> None:
        if self._copies is None:
            copy_all(self._layers, moves)
        else:
            self._copies(moves)

    def _swap(self, move: SwapOut | SwapIn) -> None:
        assert self._host is not None, f"{move}: no room was opened on the host"
        self._host.apply(move)
