"""What the scheduling axes see of the sequences on the device: columns, and what memory hands out for tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Strategy, Usage, ceil_div


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """B sequences, oldest admission first. Counts are tokens."""

    seq_B: NDArray[np.int64]
    stored_B: NDArray[np.int64]  # in memory
    known_B: NDArray[np.int64]  # prompt, and output so far
    prompt_B: NDArray[np.int64]
    limit_B: NDArray[np.int64]  # it may ever hold, as the client declared
    expected_B: NDArray[np.int64]  # it will hold, says the forecast
    room_B: NDArray[np.int64]  # it may hold before it must ask again
    priority_B: NDArray[np.int64]  # the larger, the more important
    token_bytes: int  # of one token in every layer
    unit_bytes: int  # memory is handed out in pieces of so many: unit_bytes(strategy)

    def __len__(self) -> int:
        return len(self.seq_B)

    def pieces(self, tokens_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """Pieces of memory that so many tokens take [B]."""
        return -(-tokens_B * self.token_bytes // self.unit_bytes)

    def tokens(self, pieces: int) -> int:
        """So many pieces as tokens' worth, rounded up."""
        return ceil_div(pieces * self.unit_bytes, self.token_bytes)

    def growth(self, upto_B: NDArray[np.int64]) -> int:
        """Pieces that those here still take, all together, until each holds so many tokens."""
        return int(np.maximum(self.pieces(upto_B) - self.pieces(self.room_B), 0).sum())

    def rest(self, length: int, upto: int) -> int:
        """Pieces that a sequence takes from `length` tokens on until it holds `upto`."""
        first, last = self.pieces(np.array((length, max(length, upto)))).tolist()
        return int(last - first)


def unit_bytes(strategy: Strategy) -> int:
    """Bytes of the pieces in which a strategy hands out memory: blocks, page groups or single tokens."""
    memory = strategy.memory
    if strategy.block_size is not None:
        return strategy.block_size * memory.token_bytes
    return memory.page_group_bytes if strategy.virtual else memory.token_bytes


def capacity(usage: Usage) -> int:
    """Bytes that sequences may take, all in all."""
    return usage.held + usage.cached + usage.free
