"""Reserve the maximum: one row of max_len slots for each sequence, for as long as it lives.

What servers did before paging (FasterTransformer, Orca as the PagedAttention paper's Orca (Max), a static
cache): simple, an unmodified kernel, and most of the memory never written. Kwon et al., SOSP 2023, 6.1.
"""

from __future__ import annotations

from kvlab.strategy import Arrival, Grant, Memory, Strategy, Usage


class Contiguous(Strategy):
    """Rows of memory.max_len slots."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.row = memory.max_len
        self.rows = self.pools[0].slots // self.row
        self.free = [index * self.row for index in range(self.rows)][::-1]  # first slots of the free rows

    @property
    def longest(self) -> int:
        return self.row if self.rows else 0

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        if not self.free or not self.table.spare or (len(self.free) - 1) * self.row < leave:
            return None
        self.table.open(arrival.seq, self.free[-1:])
        self.free.pop()
        return Grant(0, self.row)

    def extend(self, seq: int, length: int, upto: int) -> int | None:
        self.table.row[seq]  # KeyError: unknown
        return self.row if upto <= self.row else None

    def release(self, seq: int) -> None:
        self.free += self.table.close(seq)

    def usage(self) -> Usage:
        row_bytes = self.row * self.memory.token_bytes
        largest = self.row if self.free and self.table.spare else 0
        return Usage(len(self.table) * row_bytes, 0, len(self.free) * row_bytes, largest)
