"""Reserve what a request is expected to hold, in runs of a power of two: Orca as the PagedAttention paper had it.

Kwon et al., SOSP 2023, 6.1: "We assume Orca uses the buddy allocation algorithm". Its three Orcas are this class
under three forecasts: limit (Max), pow2 (Pow2) and oracle (Oracle). The room is what was expected; what the
buddy rounds up beyond it is `rounded`, which the paper counts as external.

A sequence that outgrows its run takes the free buddies beside it, else moves to a larger free run. One that is
alone can always do the first inside the largest power of two of the pool, and the second into it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvlab.ranges import Ranges
from kvlab.strategy import Arrival, Copy, Grant, Memory, Move, Strategy, Usage


class Halves:
    """A binary buddy allocator over any number of slots: one tree for each power of two that they are the sum of.

    The trees lie in falling order of size, so a run begins at a multiple of its size and its buddy is one bit away.
    The buddy of a whole tree lies in smaller trees and so is never free as one run: trees never merge.
    """

    def __init__(self, slots: int) -> None:
        self.free = 0
        self.starts: list[dict[int, None]] = [{} for _ in range(slots.bit_length())]  # order -> free runs, newest last
        for order in reversed(range(slots.bit_length())):
            if slots >> order & 1:
                self.give(self.free, 1 << order)

    @property
    def largest(self) -> int:
        """Slots of the largest free run."""
        return next((1 << order for order in reversed(range(len(self.starts))) if self.starts[order]), 0)

    def size(self, slots: int) -> int:
        """Slots that a request for so many takes: the next power of two."""
        return 1 << (slots - 1).bit_length()

    def take(self, size: int) -> int | None:
        """First slot of a free run of `size`, a power of two; the lower half of what had to be split."""
        order = size.bit_length() - 1
        found = next((larger for larger in range(order, len(self.starts)) if self.starts[larger]), None)
        if found is None:
            return None
        start, _ = self.starts[found].popitem()
        for half in reversed(range(order, found)):
            self.starts[half][start + (1 << half)] = None
        self.free -= size
        return start

    def give(self, start: int, size: int) -> None:
        """A run is free again, joined with its buddy, and the buddy of both, as long as they are free."""
        self.free += size
        while self._is_free(start ^ size, size):
            del self.starts[size.bit_length() - 1][start ^ size]
            start &= ~size
            size *= 2
        self.starts[size.bit_length() - 1][start] = None

    def widen(self, start: int, size: int, want: int) -> int | None:
        """Grow a run that is taken to `want` slots by taking its buddies; its first slot, or None if one is taken."""
        buddies, half = [], size
        while half < want:
            if not self._is_free(start ^ half, half):
                return None
            buddies.append((start ^ half, half))
            start &= ~half
            half *= 2
        for buddy, half in buddies:
            del self.starts[half.bit_length() - 1][buddy]
        self.free -= want - size
        return start

    def _is_free(self, start: int, size: int) -> bool:
        order = size.bit_length() - 1
        return order < len(self.starts) and start in self.starts[order]


class Buddy(Strategy):
    """One run for each sequence. fit: buddy, or first for the first free range that is long enough, not rounded."""

    def __init__(self, memory: Memory, fit: str = "buddy") -> None:
        if fit not in ("buddy", "first"):
            raise ValueError(f"fit={fit}: allowed is buddy or first")
        super().__init__(memory)
        self.total = self.pools[0].slots  # slots
        self.space: Halves | Ranges = Halves(self.total) if fit == "buddy" else Ranges(self.total)
        # In first fit a lone run may lie in the middle, and the larger side of it is sure to hold only half the pool.
        self.sure = self.space.largest if fit == "buddy" else self.total // 2
        self.size: dict[int, int] = {}  # slots of each sequence's run
        self.room: dict[int, int] = {}  # tokens of them that it was given
        self.rooms = 0  # tokens, of all sequences
        self.leaving: list[tuple[int, int]] = []  # (start, size) of runs that an undrained copy still reads

    @property
    def longest(self) -> int:
        return min(self.sure, self.memory.max_len)

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        if arrival.seq in self.size:
            raise KeyError(f"sequence {arrival.seq} is open already")
        room = min(max(arrival.expected, arrival.length), self.longest)
        size = self.space.size(room)
        if room < arrival.length or self.space.free - size < leave or not self.table.spare:
            return None
        start = self.space.take(size)
        if start is None:
            return None
        self.table.open(arrival.seq, [start])
        self.size[arrival.seq], self.room[arrival.seq] = size, room
        self.rooms += room
        return Grant(0, room)

    def extend(self, seq: int, length: int, upto: int) -> int | None:
        if upto <= self.room[seq]:
            return self.room[seq]
        if upto > self.longest:
            return None
        if upto > self.size[seq] and not self._outgrow(seq, length, self.space.size(upto)):
            return None
        room = min(self.size[seq], self.memory.max_len)  # the forecast was wrong: all of the run is its room now
        self.rooms += room - self.room[seq]
        self.room[seq] = room
        return room

    def release(self, seq: int) -> None:
        self.space.give(self.table.close(seq)[0], self.size.pop(seq))
        self.rooms -= self.room.pop(seq)

    def drain(self) -> list[Move]:
        for start, size in self.leaving:
            self.space.give(start, size)
        self.leaving = []
        return super().drain()

    def usage(self) -> Usage:
        token_bytes, held = self.memory.token_bytes, self.total - self.space.free
        largest = min(self.space.largest, self.longest) if self.table.spare else 0
        rounded = (held - self.rooms) * token_bytes
        return Usage(held * token_bytes, 0, self.space.free * token_bytes, largest, rounded)

    def rounded_at(self) -> Iterable[tuple[int, int, int]]:
        for seq, size in self.size.items():
            if size > self.room[seq]:
                yield 0, int(self.table[seq][0]) + self.room[seq], size - self.room[seq]

    def _outgrow(self, seq: int, length: int, want: int) -> bool:
        """Widen the run to `want` slots, or move its `length` tokens to one that has them; False: nothing was done."""
        start, size = int(self.table[seq][0]), self.size[seq]
        target = self.space.widen(start, size, want)
        if target is None:
            target = self.space.take(want)
            if target is None:
                return False
            self.leaving.append((start, size))
        if target != start and length:
            self.moves.append(Copy(start, target, length))
        self.table.put(seq, 0, target)
        self.size[seq] = want
        return True
