"""Rows of numbers in the order of time: all of them, or as many as fit, neighbours merged.

A block of rows at a time goes on to whoever adds up; memory does not grow with the length of a run but where all
rows are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.float64]  # [rows, columns]
ROWS = 4096  # in a block


class Series:
    """Rows come one by one or many at a time; `sink` sees each once, in blocks, the last one at `flush`."""

    def __init__(self, columns: int, sink: Callable[[Block], None]) -> None:
        self.block, self.filled, self.sink = np.empty((ROWS, columns)), 0, sink

    def append(self, row: Sequence[float]) -> None:
        self.block[self.filled] = row
        self.filled += 1
        if self.filled == ROWS:
            self.flush()

    def extend(self, rows: Block) -> None:
        while len(rows):
            part = rows[: ROWS - self.filled]
            self.block[self.filled : self.filled + len(part)] = part
            self.filled += len(part)
            rows = rows[len(part) :]
            if self.filled == ROWS:
                self.flush()

    def flush(self) -> None:
        if self.filled:
            self.sink(self.block[: self.filled].copy())
            self.filled = 0


class Everything:
    """Keeps every row."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def add(self, block: Block) -> None:
        self.blocks.append(block)

    def rows(self, columns: int) -> Block:
        return np.concatenate(self.blocks) if self.blocks else np.empty((0, columns))


class Thinned:
    """At most `limit` rows: where there are more, neighbours become one, again and again.

    `merge` makes one row of two, for each pair of neighbours: [pairs, 2, columns] to [pairs, columns].
    """

    def __init__(self, limit: int, merge: Callable[[NDArray[np.float64]], Block]) -> None:
        self.limit, self.merge = limit, merge
        self.kept: list[Block] = []
        self.halvings = 0  # of every row that comes

    def add(self, block: Block) -> None:
        for _ in range(self.halvings):
            block = self._halved(block)
        self.kept.append(block)
        while sum(map(len, self.kept)) > self.limit:
            self.kept = [self._halved(np.concatenate(self.kept))]
            self.halvings += 1

    def rows(self, columns: int) -> Block:
        return np.concatenate([np.empty((0, columns)), *self.kept])

    def _halved(self, rows: Block) -> Block:
        even = len(rows) // 2 * 2
        return np.concatenate((self.merge(rows[:even].reshape(-1, 2, rows.shape[1])), rows[even:]))
