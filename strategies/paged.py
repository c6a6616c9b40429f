"""Blocks on demand behind a block table: the last block of a sequence is its only waste.

Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, SOSP 2023.
A fork shares every block of its parent; who writes into a shared block first copies it (4.4 there).
"""

from __future__ import annotations

import numpy as np

from kvlab.strategies.swapped_blocks import SwappedBlocks
from kvlab.strategy import Arrival, Arrivals, Copy, Counts, Grant, Memory, Move, Usage, ceil_div

FEW = 4  # so many are quicker asked one by one


class Paged(SwappedBlocks):
    """Blocks of block_size slots; the free ones are a stack."""

    def __init__(self, memory: Memory, block_size: int = 16) -> None:
        super().__init__(memory, block_size)
        self.blocks = self.pools[0].slots // block_size
        self.free = list(reversed(range(self.blocks)))
        self.sharers: dict[int, int] = {}  # block -> its owners beyond the first
        self.copied: set[int] = set()  # blocks that a copy reads at the next drain; they stay held until then
        self.leaving: dict[int, None] = {}  # those of them that nobody owns

    @property
    def longest(self) -> int:
        return min(self.blocks * self.block_size, self.memory.max_len)

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        need = ceil_div(min(new, arrival.length), self.block_size)
        if need + ceil_div(leave, self.block_size) > len(self.free) or not self.table.spare:
            return None
        self.table.open(arrival.seq, self.free[: -need - 1 : -1])
        del self.free[len(self.free) - need :]
        return Grant(0, need * self.block_size)

    def admit_all(self, arrivals: Arrivals, beyond: int) -> list[int]:
        """As many as there are blocks, seats and open names for."""
        if len(arrivals.seq) < FEW:
            return super().admit_all(arrivals, beyond)
        need_N, free = -(-arrivals.length // self.block_size), len(self.free)
        left_N = free - np.cumsum(need_N) + need_N  # free blocks before each of them
        fits_N = arrivals.length + beyond <= np.minimum(left_N * self.block_size, self.longest)
        fits_N[len(self.table.spare) :] = False
        count = len(fits_N) if fits_N.all() else int(fits_N.argmin())
        seqs = arrivals.seq[:count].tolist()
        if len(set(seqs)) < count or not self.table.row.keys().isdisjoint(seqs):
            return super().admit_all(arrivals, beyond)
        blocks = int(need_N[:count].sum())
        self.table.open_each(seqs, need_N[:count], self.free[: -blocks - 1 : -1])
        del self.free[free - blocks :]
        rooms: list[int] = (need_N[:count] * self.block_size).tolist()
        return rooms

    def extend(self, seq: int, length: int, upto: int) -> int | None:
        held = self.table.count[seq]
        need = ceil_div(upto, self.block_size) - held
        if need > len(self.free) or upto > self.memory.max_len:
            return None
        if length % self.block_size and self.must_copy(seq, length):
            if max(need, 0) == len(self.free):
                return None
            self.copy(seq, length)
        elif self.twins.of and length % self.block_size:
            self.twins.written(int(self.table[seq][length // self.block_size]), length % self.block_size)
        if need > 0:
            self.table.append(seq, self.free[: -need - 1 : -1])
            del self.free[len(self.free) - need :]
            held += need
        return held * self.block_size

    def extend_all(self, seqs: list[int], length_N: Counts, upto_N: Counts) -> list[int]:
        """A block each for those whose last one is full, as in a step that only decodes; else one by one."""
        size, count = self.block_size, len(seqs)
        row_N = self.table.rows(seqs)
        room_N = self.table.filled[row_N] * size
        more_N = room_N + size
        asked_N = (length_N < upto_N) & (upto_N <= np.minimum(more_N, self.memory.max_len))
        full_N = (room_N == length_N) & asked_N
        blocks = self.take(count) if count and np.count_nonzero(full_N) == count else None
        if blocks is None:
            return super().extend_all(seqs, length_N, upto_N)
        self.table.append_each(row_N, blocks)
        rooms: list[int] = more_N.tolist()
        return rooms

    def take(self, count: int) -> list[int] | None:
        """So many blocks that nobody owns, 1 or more; None: there are fewer, and nothing has changed."""
        if count > len(self.free):
            return None
        blocks = self.free[: -count - 1 : -1]
        del self.free[-count:]
        return blocks

    def release(self, seq: int) -> None:
        blocks = self.table.close(seq)[::-1]
        if self.sharers or self.copied or self.twins.of:
            self.disown(blocks)
        else:
            self.vacate_all(blocks)

    def release_all(self, seqs: list[int]) -> None:
        if len(seqs) < FEW or self.sharers or self.copied or self.twins.of:
            super().release_all(seqs)
        else:
            self.vacate_all(self.table.close_each(seqs))

    def usage(self) -> Usage:
        block_bytes, free = self.block_size * self.memory.token_bytes, len(self.free)
        largest = min(free * self.block_size, self.longest) if self.table.spare else 0
        return Usage(
            (self.blocks - free) * block_bytes, 0, free * block_bytes, largest, len(self.leaving) * block_bytes
        )

    # --- sharing

    def fork(self, parent: int, child: Arrival) -> Grant | None:
        blocks = self.table[parent][: ceil_div(child.length, self.block_size)].tolist()
        if not self.table.spare:
            return None
        self.table.open(child.seq, blocks)
        self.join(blocks)
        return Grant(child.length, len(blocks) * self.block_size)

    def truncate(self, seq: int, length: int) -> None:
        self.disown(self.table.cut(seq, ceil_div(length, self.block_size))[::-1])

    def returns(self, seq: int) -> int | None:
        return self.block_size * sum(block not in self.sharers for block in self.table[seq].tolist())

    def drain(self) -> list[Move]:
        self.copied.clear()
        for block in self.leaving:
            self.vacate(block)
        self.leaving.clear()
        return super().drain()

    def must_copy(self, seq: int, length: int) -> bool:
        """Whether the block that holds token `length` is not the sequence's alone."""
        return int(self.table[seq][length // self.block_size]) in self.sharers

    def copy(self, seq: int, length: int) -> None:
        """Give the sequence a block of its own in place of its last, which holds tokens up to `length`."""
        index, tokens = divmod(length, self.block_size)
        source, target = int(self.table[seq][index]), self.free.pop()
        self.moves.append(Copy(source * self.block_size, target * self.block_size, tokens))
        self.table.put(seq, index, target)
        self.copied.add(source)
        self.disown([source])

    def disown(self, blocks: list[int]) -> None:
        """One owner fewer for each of the blocks."""
        for block in blocks:
            if block in self.sharers:
                self.sharers[block] -= 1
                if not self.sharers[block]:
                    del self.sharers[block]
                continue
            self.twins.part(block)
            if block in self.copied:
                self.leaving[block] = None
            else:
                self.vacate(block)

    def vacate(self, block: int) -> None:
        """Nobody owns the block."""
        self.free.append(block)

    def vacate_all(self, blocks: list[int]) -> None:
        """The same for several, in order."""
        self.free += blocks
