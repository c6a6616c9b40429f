"""Where keys and values lie: a store owns the memory of all layers and carries out a strategy's moves.

Every layer's keys and values are token-major tensors [S, H, D] (S slots, H key/value heads, D head size)
that stay the same for the store's whole life; only what backs them changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import groupby

from torch import Tensor

from kvlab.kernels.copy import copy
from kvlab.memory.host import HostMemory
from kvlab.moves import Copy, Move, SwapIn, SwapOut

Layers = list[tuple[Tensor, Tensor]]  # k_SHD, v_SHD of each
Copies = Callable[[list[Copy]], None]


class Store(ABC):
    """The keys and values of one pool."""

    _layers: Layers
    _copies: Copies | None = None  # None: layer by layer
    _host: HostMemory | None = None  # None: nothing is swapped

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """k_SHD, v_SHD of that layer: the same tensors for the store's whole life, dead after close."""
        return self._layers[index]

    def apply(self, moves: list[Move]) -> None:
        """Carry out the moves in order. VmmError: that move did nothing, those before it are done."""
        for together, group in groupby(moves, self._together):
            if together:
                self._copy_all([move for move in group if isinstance(move, Copy)])
            else:
                for move in group:
                    assert move.pool == 0, f"{move}: the store has one pool"
                    self._apply(move)

    def copy_all_with(self, make: Callable[[Layers], Copies]) -> None:
        """From here on copies that follow one another go together, through what `make` makes of all layers."""
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
        assert self._copies is not None
        self._copies(moves)

    def _together(self, move: Move) -> bool:
        return self._copies is not None and isinstance(move, Copy)

    def _swap(self, move: SwapOut | SwapIn) -> None:
        assert self._host is not None, f"{move}: no room was opened on the host"
        self._host.apply(move)

    def _copy(self, move: Copy) -> None:
        for k_SHD, v_SHD in self._layers:
            copy(k_SHD, v_SHD, move.source, move.target, move.tokens)
