"""Virtual memory: a virtually contiguous row for each sequence, page groups mapped under it as it grows.

The attention kernel is the one for contiguous rows, unmodified; the tail of a row is truly unmapped. Prabhu et
al., vAttention, ASPLOS 2025. Beyond its published code, a fork shares: the whole page groups of the parent's
prefix are mapped under the child's row too, and belong to both until one leaves. They are never written: a
sequence grows behind them, and where it is cut back into them it gets a copy.
"""

from __future__ import annotations

from bisect import bisect_left

from kvlab.strategies.rows import MappedRows
from kvlab.strategy import Arrival, Grant, Memory, Usage


class VAttention(MappedRows):
    """Page groups with owners. Prefixes are shared up to a multiple of memory.align."""

    def __init__(self, memory: Memory, map_ahead: int = 0) -> None:
        super().__init__(memory, map_ahead)
        self.owners: dict[int, int] = {}  # physical page group -> its sequences, where that is more than one
        self.held_total = self.rooms_total = 0  # page groups; tokens: what is shared counts once

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        need = self.memory.page_groups(min(new, arrival.length))
        if not self._fits(need + self.memory.page_groups(leave)):
            return None
        row = self._open(arrival.seq, need)
        return Grant(0, self._hold(row, need))

    def extend(self, seq: int, length: int, upto: int) -> int | None:
        row, need = self._row(seq), self.memory.page_groups(upto)
        shared, first = self._shared(row), self._aligned(length)
        apart = min(shared, self.memory.page_groups(first))  # below `shared` after a truncation only
        kept = self.held[row] - (shared - apart)
        if need - kept > self.groups_total - self.held_total or upto > self.memory.max_len:
            return None
        if apart < shared:
            other = self._co_owner(row, apart)
            self._leave(row, apart)
        room = self._hold(row, max(need, kept))
        if apart < shared:
            self._copy(other, row, first, length)
        return room

    def release(self, seq: int) -> None:
        row = self._row(seq)
        self._leave(row, 0)
        self._hold(row, 0)
        self._close(seq, row)

    def fork(self, parent: int, child: Arrival) -> Grant | None:
        source, first = self._row(parent), self._aligned(child.length)
        need, shared = self.memory.page_groups(child.length), self.memory.page_groups(first)
        if not self._fits(need - shared):
            return None
        row = self._open(child.seq, 0)
        self._join(row, self.mapped[source][:shared])
        room = self._hold(row, need)
        self._copy(source, row, first, child.length)
        return Grant(child.length, room)

    def truncate(self, seq: int, length: int) -> None:
        """Whole page groups go back, and stay mapped; what is shared is kept."""
        row = self._row(seq)
        kept = max(self.memory.page_groups(length), self._shared(row))
        self._hold(row, min(kept, self.held[row]))

    def returns(self, seq: int) -> int:
        row = self._row(seq)
        return (self.held[row] - self._shared(row)) * self.memory.page_group_bytes // self.memory.token_bytes

    def usage(self) -> Usage:
        size = self.memory.page_group_bytes
        held, free = self.held_total * size, (self.groups_total - self.held_total) * size
        largest = min(self.memory.tokens(free // size), self.longest) if self.table.spare else 0
        rounded = held - self.rooms_total * self.memory.token_bytes
        return Usage(held, 0, free, largest, rounded, (self.groups_total - len(self.unmapped)) * size)

    # --- who holds what

    def _fits(self, need: int) -> bool:
        return need <= self.groups_total - self.held_total and bool(self.table.spare)

    def _aligned(self, length: int) -> int:
        return length // self.memory.align * self.memory.align

    def _room(self, row: int) -> int:
        return min(self.memory.tokens(self.held[row]), self.memory.max_len)

    def _alone(self, row: int) -> int:
        """Tokens of the row's room that no other sequence has."""
        return self._room(row) - self.memory.tokens(self._shared(row))

    def _shared(self, row: int) -> int:
        """How many of the row's page groups have another owner: always the first, and up to a multiple of align."""
        if not self.owners:
            return 0
        mapped = self.mapped[row]
        return bisect_left(range(self.held[row]), True, key=lambda index: mapped[index] not in self.owners)

    def _co_owner(self, row: int, index: int) -> int:
        """Another row that holds the row's page group at `index`, and so those before it."""
        physical = self.mapped[row][index]
        others = (other for other, held in enumerate(self.held) if held > index and other != row)
        return next(other for other in others if self.mapped[other][index] == physical)

    def _hold(self, row: int, need: int) -> int:
        """Let the row's sequence hold its first `need` page groups; the room."""
        before = self._alone(row)
        self.held_total += need - self.held[row]
        self._back(row, need)
        self.rooms_total += self._alone(row) - before
        return self._room(row)

    def _join(self, row: int, shared: list[int]) -> None:
        """Let an idle row hold what another one holds."""
        self._put_before(row, shared)
        self.owners.update({physical: self.owners.get(physical, 1) + 1 for physical in shared})
        self.held[row] = len(shared)

    def _leave(self, row: int, start: int) -> None:
        """Give up the shared page groups from `start` on; those of the row alone close up."""
        gone, before = range(start, self._shared(row)), self._alone(row)
        for physical in self.mapped[row][start : gone.stop]:
            self.owners[physical] -= 1
            if self.owners[physical] == 1:
                del self.owners[physical]
        self._take_away(row, start, gone.stop)
        self.held[row] -= len(gone)
        self.rooms_total += self._alone(row) - before
