"""Virtual memory: a virtually contiguous row for each sequence, page groups mapped under it as it grows.

The attention kernel is the one for contiguous rows, unmodified; the tail of a row is truly unmapped. A
released row keeps its page groups and is handed on (deferred reclamation); they are taken from under it
only when nothing else is left. Prabhu et al., vAttention, ASPLOS 2025.
"""

from __future__ import annotations

from kvlab.strategy import Arrival, Grant, Map, Memory, Strategy, Unmap, Usage, ceil_div


class VAttention(Strategy):
    """max_seqs rows of max_len slots, rounded up so that each starts where a page group starts."""

    virtual = True

    def __init__(self, memory: Memory) -> None:
        if memory.page_group_bytes < 1:
            raise ValueError(f"page_group_bytes={memory.page_group_bytes}: allowed is 1 byte or more")
        self.row_slots = ceil_div(memory.max_len, memory.align) * memory.align
        super().__init__(memory, slots=memory.max_seqs * self.row_slots)
        self.row_groups = self.row_slots * memory.token_bytes // memory.page_group_bytes
        self.groups_total = memory.bytes // memory.page_group_bytes
        self.unmapped = list(range(self.groups_total))[::-1]  # physical page groups that lie under no row
        self.mapped: list[list[int]] = [[] for _ in range(memory.max_seqs)]  # row -> those under it, in order
        self.held = [0] * memory.max_seqs  # row -> page groups that its sequence holds, the first of them
        self.held_total = self.rooms_total = 0  # page groups; tokens
        self.idle: list[list[int]] = [[] for _ in range(self.row_groups + 1)]  # mapped page groups -> rows
        self.idle[0] = list(range(memory.max_seqs))[::-1]
        self.surplus: dict[int, None] = {}  # live rows with more mapped than held, oldest first

    @property
    def longest(self) -> int:
        return min(self.memory.tokens(self.groups_total), self.memory.max_len)

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        need = self.memory.page_groups(min(new, arrival.length))
        spare = self.groups_total - self.held_total
        if need + self.memory.page_groups(leave) > spare or not self.table.spare:
            return None
        if arrival.seq in self.table.row:
            raise KeyError(f"sequence {arrival.seq} is open already")
        row = self._take(need)
        self.table.open(arrival.seq, [row * self.row_slots])
        return Grant(0, self._hold(row, need))

    def extend(self, seq: int, length: int, upto: int) -> int | None:
        row = self._row(seq)
        need = self.memory.page_groups(upto)
        if need - self.held[row] > self.groups_total - self.held_total or upto > self.memory.max_len:
            return None
        return self._hold(row, max(need, self.held[row]))

    def release(self, seq: int) -> None:
        row = self._row(seq)
        self.table.close(seq)
        self.rooms_total -= self._room(row)
        self.held_total -= self.held[row]
        self.held[row] = 0
        self.surplus.pop(row, None)
        self.idle[len(self.mapped[row])].append(row)

    def usage(self) -> Usage:
        size = self.memory.page_group_bytes
        held, free = self.held_total * size, (self.groups_total - self.held_total) * size
        largest = min(free // self.memory.token_bytes, self.longest) if self.table.spare else 0
        rounded = held - self.rooms_total * self.memory.token_bytes
        return Usage(held, 0, free, largest, rounded, (self.groups_total - len(self.unmapped)) * size)

    def _row(self, seq: int) -> int:
        return int(self.table[seq][0]) // self.row_slots

    def _room(self, row: int) -> int:
        return min(self.memory.tokens(self.held[row]), self.memory.max_len)

    def _take(self, need: int) -> int:
        """The idle row with the fewest page groups that suffice, else the one with the most."""
        counts = [*range(need, self.row_groups + 1), *range(need - 1, -1, -1)]
        row: int = next(self.idle[count].pop() for count in counts if self.idle[count])
        return row

    def _hold(self, row: int, need: int) -> int:
        """Let the row's sequence hold its first `need` page groups, mapped now where they are not; the room."""
        before, mapped = self._room(row), self.mapped[row]
        self.held_total += need - self.held[row]
        self.held[row] = need
        self.surplus.pop(row, None)  # before anything is stolen
        while len(mapped) < need:
            physical = self.unmapped.pop() if self.unmapped else self._steal()
            self.moves.append(Map(row * self.row_groups + len(mapped), physical))
            mapped.append(physical)
        if len(mapped) > need:
            self.surplus[row] = None
        self.rooms_total += self._room(row) - before
        return self._room(row)

    def _steal(self) -> int:
        """The last page group under the idle row that has most, or else under a live row that has a surplus."""
        count = next((c for c in range(self.row_groups, 0, -1) if self.idle[c]), None)
        if count is not None:
            row = self.idle[count].pop()
            self.idle[count - 1].append(row)
        else:
            row = next(iter(self.surplus))
            if len(self.mapped[row]) == self.held[row] + 1:
                del self.surplus[row]
        physical = self.mapped[row].pop()
        self.moves.append(Unmap(row * self.row_groups + len(self.mapped[row])))
        self.counts["stolen"] += 1
        return physical
