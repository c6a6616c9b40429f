"""One arena, first fit: a row as long as the request declares it may become, wherever the first such gap is.

Knuth, The Art of Computer Programming, volume 1, 2.5. A request that declares its limit well pays for nothing else;
what lies between rows and is too short for anybody is lost until a neighbour leaves.
"""

from __future__ import annotations

from kvlab.ranges import Ranges
from kvlab.strategy import Arrival, Grant, Memory, Strategy, Usage


class Arena(Strategy):
    """Rows of arrival.limit slots."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.gaps = Ranges(self.pools[0].slots)  # joined when they touch; finds the first that is long enough
        self.row: dict[int, int] = {}  # sequence -> slots of its row

    @property
    def longest(self) -> int:
        return min(self.pools[0].slots, self.memory.max_len)

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        size = min(max(arrival.limit, arrival.length), self.memory.max_len)
        if size > self.gaps.largest or self.gaps.free - size < leave or not self.table.spare:
            return None
        self.table.open(arrival.seq, [])
        start = self.gaps.take(size)
        assert start is not None, "there was no gap of the length that `largest` said"
        self.table.append(arrival.seq, [start])
        self.row[arrival.seq] = size
        return Grant(0, size)

    def extend(self, seq: int, length: int, upto: int) -> int | None:
        return self.row[seq] if upto <= self.row[seq] else None

    def release(self, seq: int) -> None:
        (start,) = self.table.close(seq)
        self.gaps.give(start, self.row.pop(seq))

    def usage(self) -> Usage:
        free, token_bytes = self.gaps.free, self.memory.token_bytes
        largest = min(self.gaps.largest, self.longest) if self.table.spare else 0
        return Usage((self.pools[0].slots - free) * token_bytes, 0, free * token_bytes, largest)
