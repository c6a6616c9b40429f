"""Two groups of layers over blocks: one keeps all tokens, the other only those that its window still reads.

The smallest strategy with windows and several tables, on one pool for both groups or on one for each. It is an
example for the contract's tests; no engine runs such a strategy yet.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Arrival, Grant, LayerGroup, Memory, Pool, Strategy, Tables, Usage, ceil_div


class TwoGroups(Strategy):
    """Blocks of one size in tokens. What lies before a window is freed as soon as the tokens behind it are stored."""

    block_size: int

    def __init__(self, memory: Memory, block_size: int, pools: int = 1) -> None:
        windows = set(memory.windows)
        if len(windows) != 2 or None not in windows:
            raise ValueError(f"windows={memory.windows}: allowed is one window and layers without")
        super().__init__(memory, block_size)
        layers = [tuple(i for i, w in enumerate(memory.windows) if (w is None) == whole) for whole in (True, False)]
        self.window = max(window for window in windows if window)
        self.groups = tuple(
            LayerGroup(of_group, window, index % pools)
            for index, (of_group, window) in enumerate(zip(layers, (None, self.window), strict=True))
        )
        size = memory.token_bytes // len(memory.windows)  # of a token in one layer
        if pools == 1 and len(layers[0]) != len(layers[1]):
            raise ValueError("one pool: allowed are groups of as many layers")
        share = memory.bytes // pools
        self.pools = tuple(
            Pool(share // (size * len(layers[i])) // block_size * block_size, size * len(layers[i]))
            for i in range(pools)
        )
        width = ceil_div(memory.max_len, block_size)
        self.tables = tuple(Tables(memory.max_seqs, width) for _ in self.groups)
        self.table = self.tables[0]
        self.free = [list(range(pool.slots // block_size))[::-1] for pool in self.pools]
        self.total = [len(blocks) for blocks in self.free]
        self.most = self._longest()

    @property
    def longest(self) -> int:
        return self.most

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        need = ceil_div(min(new, arrival.length), self.block_size)
        if not self.table.spare or not self._fits([need, need], ceil_div(leave, self.block_size)):
            return None
        for table, group in zip(self.tables, self.groups, strict=True):
            table.open(arrival.seq, [])
            table.append(arrival.seq, self._take(group.pool, need))
        return Grant(0, need * self.block_size)

    def extend(self, seq: int, length: int, upto: int) -> int | None:
        need = max(0, ceil_div(upto, self.block_size) - self.table.count[seq])
        if upto > self.memory.max_len or not self._fits([need, need], 0):
            return None
        for table, group in zip(self.tables, self.groups, strict=True):
            table.append(seq, self._take(group.pool, need))
        return self.table.count[seq] * self.block_size

    def wrote(self, seq: int, length: int, ids: NDArray[np.int32] | None) -> None:
        behind = max(0, length - self.window + 1) // self.block_size
        self.free[self.groups[1].pool] += self.tables[1].expire(seq, behind)[::-1]

    def release(self, seq: int) -> None:
        for table, group in zip(self.tables, self.groups, strict=True):
            self.free[group.pool] += table.close(seq)[::-1]

    def truncate(self, seq: int, length: int) -> None:
        for table, group in zip(self.tables, self.groups, strict=True):
            self.free[group.pool] += table.cut(seq, ceil_div(length, self.block_size))[::-1]

    def usage(self) -> Usage:
        sizes = [self.block_size * pool.token_bytes for pool in self.pools]
        free = sum(len(blocks) * size for blocks, size in zip(self.free, sizes, strict=True))
        total = sum(blocks * size for blocks, size in zip(self.total, sizes, strict=True))
        blocks = min(len(self.free[group.pool]) for group in self.groups) // (2 // len(self.pools))
        largest = min(blocks * self.block_size, self.longest) if self.table.spare else 0
        return Usage(total - free, 0, free, largest)

    def _fits(self, need: list[int], leave: int) -> bool:
        """Whether the blocks that both groups need are free, and so many beside those of the first."""
        wanted = [0] * len(self.pools)
        for group, count in zip(self.groups, need, strict=True):
            wanted[group.pool] += count
        wanted[self.groups[0].pool] += leave
        return all(count <= len(blocks) for count, blocks in zip(wanted, self.free, strict=True))

    def _take(self, pool: int, count: int) -> list[int]:
        taken = self.free[pool][: -count - 1 : -1]
        del self.free[pool][len(self.free[pool]) - count :]
        return taken

    def _longest(self) -> int:
        """Blocks that a lone sequence holds before its oldest ones behind the window are freed, growing by one."""
        for length in range(1, self.memory.max_len + 1):
            whole = ceil_div(length, self.block_size)
            behind = whole - max(0, length - 1 - self.window + 1) // self.block_size
            if not all(
                sum(count for group, count in zip(self.groups, (whole, behind), strict=True) if group.pool == pool)
                <= total
                for pool, total in enumerate(self.total)
            ):
                return length - 1
        return self.memory.max_len
