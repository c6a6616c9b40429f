"""Blocks on demand behind a block table: a place to begin.

Change what it decides and keep what it promises (docs/strategy.md of kvlab): what is refused changes nothing.
"""

from __future__ import annotations

from kvlab.strategy import Arrival, Grant, Memory, Strategy, Usage, ceil_div


class Mine(Strategy):
    """Blocks of block_size slots; the free ones are a stack."""

    block_size: int

    def __init__(self, memory: Memory, block_size: int = 16) -> None:
        super().__init__(memory, block_size)
        self.blocks = self.pools[0].slots // block_size
        self.free = list(range(self.blocks))

    @property
    def longest(self) -> int:
        return min(self.blocks * self.block_size, self.memory.max_len)

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        need = ceil_div(min(new, arrival.length), self.block_size)
        if need + ceil_div(leave, self.block_size) > len(self.free) or not self.table.spare:
            return None
        self.table.open(arrival.seq, [])
        self.take(arrival.seq, need)
        return Grant(0, need * self.block_size)

    def extend(self, seq: int, length: int, upto: int) -> int | None:
        held = self.table.count[seq]
        need = max(0, ceil_div(upto, self.block_size) - held)
        if need > len(self.free) or upto > self.memory.max_len:
            return None
        self.take(seq, need)
        return (held + need) * self.block_size

    def release(self, seq: int) -> None:
        self.free += self.table.close(seq)

    def usage(self) -> Usage:
        block_bytes, free = self.block_size * self.memory.token_bytes, len(self.free)
        largest = min(free * self.block_size, self.longest) if self.table.spare else 0
        return Usage((self.blocks - free) * block_bytes, 0, free * block_bytes, largest)

    def take(self, seq: int, blocks: int) -> None:
        """Append so many free blocks, which there are, to a sequence's table."""
        self.table.append(seq, [self.free.pop() for _ in range(blocks)])
