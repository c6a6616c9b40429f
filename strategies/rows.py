"""Rows of virtual memory: which physical page groups lie under which row, and where the next one comes from.

A row keeps its page groups when its sequence has left (deferred reclamation, vAttention section 6.1.2). The
next one to come takes the row that fits best; page groups are taken from under a row only when none lies under
no row. What a strategy over such rows decides is who holds them. With map_ahead, each row of a sequence that runs
is given so many page groups more than it holds, while a launch runs: growth then finds them in place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import chain
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Copy, Drop, Map, Memory, Strategy, Unmap, ceil_div


class MappedRows(Strategy):
    """max_seqs rows of max_len slots, rounded up so that each starts where a page group starts."""

    virtual: ClassVar[bool] = True

    def __init__(self, memory: Memory, map_ahead: int = 0) -> None:
        if not isinstance(map_ahead, int) or map_ahead < 0:
            raise ValueError(f"map_ahead={map_ahead}: allowed is a whole number of page groups, 0 or more")
        if memory.page_group_bytes < 1:
            raise ValueError(f"page_group_bytes={memory.page_group_bytes}: allowed is 1 byte or more")
        self.row_slots = ceil_div(memory.max_len, memory.align) * memory.align
        super().__init__(memory, slots=memory.max_seqs * self.row_slots)
        self.row_groups = self.row_slots * memory.token_bytes // memory.page_group_bytes
        self.groups_total = memory.bytes // memory.page_group_bytes
        self.unmapped = list(reversed(range(self.groups_total)))  # physical page groups that lie under no row
        self.mapped: list[list[int]] = [[] for _ in range(memory.max_seqs)]  # row -> those under it, in order
        self.held = [0] * memory.max_seqs  # row -> page groups that its sequence holds, the first of them
        self.idle = [(0, row) for row in range(memory.max_seqs)]  # (mapped page groups, row), sorted
        self.surplus: dict[int, None] = {}  # live rows with more mapped than held, oldest first
        self.map_ahead = map_ahead
        self.short: dict[int, None] = {}  # live rows with fewer than map_ahead page groups beyond what they hold

    @property
    def longest(self) -> int:
        return min(self.memory.tokens(self.groups_total), self.memory.max_len)

    def mapped_at(self) -> NDArray[np.int64]:
        count_R = np.fromiter(map(len, self.mapped), np.int64, len(self.mapped))
        physical_M = np.fromiter(chain.from_iterable(self.mapped), np.int64, int(count_R.sum()))
        first_R = np.arange(len(count_R)) * self.row_groups - count_R.cumsum() + count_R
        return np.stack((np.repeat(first_R, count_R) + np.arange(len(physical_M)), physical_M), axis=1)

    def rounded_at(self) -> Iterable[tuple[int, int, int]]:
        """The last part of what a row holds: it has no whole token, or lies beyond max_len."""
        for row in (row for row, held in enumerate(self.held) if held):
            room = min(self.memory.tokens(self.held[row]), self.memory.max_len)
            slots = ceil_div(self.held[row] * self.memory.page_group_bytes, self.memory.token_bytes)
            if slots > room:
                yield 0, row * self.row_slots + room, slots - room

    def _row(self, seq: int) -> int:
        return int(self.table[seq][0]) // self.row_slots

    def _open(self, seq: int, need: int) -> int:
        """A row for a new sequence: the idle one with the fewest page groups that suffice, else with the most."""
        index = min(bisect_left(self.idle, (need, -1)), len(self.idle) - 1)
        self.table.open(seq, [self.idle[index][1] * self.row_slots])
        return self.idle.pop(index)[1]

    def _close(self, seq: int, row: int) -> None:
        """The sequence is gone and holds nothing; what is mapped stays."""
        self.table.close(seq)
        self.surplus.pop(row, None)
        self.short.pop(row, None)
        insort(self.idle, (len(self.mapped[row]), row))

    def _back(self, row: int, count: int) -> None:
        """Let the row hold its first `count` page groups, mapped now where they are not."""
        self.held[row] = count
        self.surplus.pop(row, None)  # before anything is stolen
        while len(self.mapped[row]) < count:
            self._map(row, self.unmapped.pop() if self.unmapped else self._steal())
        self._count_surplus(row)

    def ahead(self) -> None:
        """Page groups for rows short of surplus, as long as some lie under no row or under one that was left."""
        while self.short and (self.unmapped or (self.idle and self.idle[-1][0])):
            row = next(iter(self.short))
            self._map(row, self.unmapped.pop() if self.unmapped else self._steal())
            self._count_surplus(row)
            self.counts["mapped_ahead"] += 1

    def _count_surplus(self, row: int) -> None:
        surplus = len(self.mapped[row]) - self.held[row]
        if surplus:
            self.surplus[row] = None
        if surplus < min(self.map_ahead, self.row_groups - self.held[row]):
            self.short[row] = None
        else:
            self.short.pop(row, None)

    def _steal(self) -> int:
        """The last page group under the idle row that has most, or else under a live row that has a surplus."""
        self.counts["stolen"] += 1
        if self.idle and self.idle[-1][0]:
            count, row = self.idle.pop()
            insort(self.idle, (count - 1, row))
        else:
            row = next(iter(self.surplus))
            if len(self.mapped[row]) == self.held[row] + 1:
                del self.surplus[row]
            if self.map_ahead:
                self.short[row] = None
        return self._unmap(row)

    def _put_before(self, row: int, shared: list[int]) -> None:
        """Map page groups of another row under the start of this one; what was there moves behind them."""
        mapped, base, count = self.mapped[row], row * self.row_groups, len(shared)
        moved = mapped[:count]
        self.moves += [Unmap(base + index) for index in range(len(moved))]
        self.moves += [Map(base + index, physical) for index, physical in enumerate(shared)]
        mapped[:count] = shared
        for physical in moved:
            if len(mapped) < self.row_groups:
                self._map(row, physical)
            else:  # what lies under no row has no memory
                self.moves.append(Drop(physical))
                self.unmapped.append(physical)

    def _take_away(self, row: int, start: int, stop: int) -> None:
        """Unmap the page groups [start, stop) of a row; others from its end take their places."""
        mapped, base = self.mapped[row], row * self.row_groups
        self.moves += [Unmap(base + index) for index in range(start, stop)]
        filled = range(start, stop)[: len(mapped) - stop]
        for index in filled:
            mapped[index] = self._unmap(row)
            self.moves.append(Map(base + index, mapped[index]))
        del mapped[start + len(filled) : stop]

    def _map(self, row: int, physical: int) -> None:
        self.moves.append(Map(row * self.row_groups + len(self.mapped[row]), physical))
        self.mapped[row].append(physical)

    def _unmap(self, row: int) -> int:
        self.moves.append(Unmap(row * self.row_groups + len(self.mapped[row]) - 1))
        return self.mapped[row].pop()

    def _copy(self, source: int, target: int, first: int, stop: int) -> None:
        """The tokens [first, stop) of one row to another."""
        if first < stop:
            self.moves.append(Copy(source * self.row_slots + first, target * self.row_slots + first, stop - first))
