"""Blocks that outlive their sequences: published, owned by nobody, and evicted when room is short.

A block is owned, idle or free. Which of the idle ones goes next is for an order of eviction to say (kvlab.eviction);
what else an evicted block means, for the index that it was published in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from kvlab.eviction import LRU, Eviction
from kvlab.strategies.paged import Paged
from kvlab.strategy import Memory, Usage, ceil_div


class IdleBlocks(Paged):
    """Token counts in `counts`: evicted, and of those the ones that an order took beyond what was short."""

    def __init__(self, memory: Memory, block_size: int = 16, eviction: Eviction | None = None) -> None:
        super().__init__(memory, block_size)
        self.idle: Eviction = LRU() if eviction is None else eviction
        self.blank = 0  # keys of `idle` that are not published
        self.published = bytearray(self.blocks)  # 1 for each block that the index has
        self.priority: dict[int, int] = {}  # published block -> the highest priority among its users; not there: 0
        self.counts.update(evicted=0, evicted_beyond_need=0)
        self.idle.serve(self)

    @abstractmethod
    def evict(self, count: int) -> tuple[list[int], int]:
        """Take the next `count` idle blocks, or fewer and what must go with them, out of `idle` and of the index.

        Those that are nobody's now, and how many the index has lost.
        """

    @abstractmethod
    def withdraw(self, block: int) -> None:
        """Take an owned block out of the index."""

    @property
    def available(self) -> int:
        """Blocks that nobody owns."""
        return len(self.free) + len(self.idle)

    def usage(self) -> Usage:
        block_bytes = self.block_size * self.memory.token_bytes
        free, cached = len(self.free) + self.blank, len(self.idle) - self.blank
        held, leaving = (self.blocks - free - cached) * block_bytes, len(self.leaving) * block_bytes
        largest = min((free + cached) * self.block_size, self.longest) if self.table.spare else 0
        return Usage(held, cached * block_bytes, free * block_bytes, largest, leaving)

    def cached_at(self) -> Iterable[tuple[int, int, int]]:
        size = self.block_size
        return ((0, block * size, size) for block, known in enumerate(self.published) if known and block in self.idle)

    def page_group(self, block: int) -> int | None:
        """The one that a block begins in; None: the memory has none."""
        size = self.memory.page_group_bytes
        return block * self.block_size * self.memory.token_bytes // size if size else None

    def clear(self) -> None:
        blocks = list[int]()
        while len(self.idle):
            blocks += self.evict(len(self.idle))[0]
        for block in blocks:
            self.vacate(block)

    # --- room for who asks

    def extend(self, seq: int, length: int, upto: int) -> int | None:
        need = max(0, ceil_div(upto, self.block_size) - self.table.count[seq])
        if need >= len(self.free):
            if need > self.available or upto > self.memory.max_len:
                return None
            if length % self.block_size and self.must_copy(seq, length):
                if need == self.available and not self.withdrawn(seq, length):
                    return None
                need = min(need + 1, self.available)
            self.reclaim(need)
        return super().extend(seq, length, upto)

    extend_all = Paged.extend_all  # whose blocks come from `take`: extend does no more then

    def take(self, count: int) -> list[int] | None:
        """As if each were asked for alone: no order of eviction may see blocks as free that were taken before."""
        if count <= len(self.free) or count > self.available:
            return super().take(count)
        blocks, self.free = self.free[::-1], []
        while short := count - len(blocks):
            if not self.free:
                self.reclaim(self.at_once(short))
            blocks += self.free[: -short - 1 : -1]
            del self.free[-short:]
        return blocks

    def at_once(self, short: int) -> int:
        """Of so many blocks that are short, those that can be evicted at once as they would be one by one."""
        return 1

    def reclaim(self, count: int) -> None:
        """Evict until so many blocks are free."""
        short = count - len(self.free)
        if short <= 0:
            return
        blank, taken, evicted = self.blank, list[int](), 0
        while len(taken) < short:
            blocks, published = self.evict(short - len(taken))
            taken, evicted = taken + blocks, evicted + published
        self.free[:0] = taken[::-1]  # below the free ones, few as they are: those are taken first, as in vLLM
        self.counts["evicted"] += evicted * self.block_size
        self.counts["evicted_beyond_need"] += (evicted - max(0, short - blank)) * self.block_size

    # --- owners come and go

    def own(self, blocks: list[int], idle: list[int], priority: int) -> None:
        """One owner more for each of these published blocks, some of which are idle."""
        self.idle.remove_all(idle)
        if len(idle) < len(blocks):
            woken = set(idle)
            for block in blocks:
                if block in self.leaving:
                    del self.leaving[block]
                elif block not in woken:
                    self.sharers[block] = self.sharers.get(block, 0) + 1
        for block in blocks if priority else ():
            if priority > self.priority.get(block, 0):
                self.priority[block] = priority

    def keep(self, block: int) -> None:
        """Hold a block until the next drain has copied from it."""
        self.copied.add(block)
        if block in self.idle:
            self.idle.remove(block)
            self.leaving[block] = None

    def vacate(self, block: int) -> None:
        if self.published[block]:
            self.idle.add(block, self.priority.get(block, 0))
        else:
            self.free.append(block)

    def vacate_all(self, blocks: list[int]) -> None:
        published = self.published
        kept = [block for block in blocks if published[block]]
        self.idle.add_all(kept, self.priority)
        if len(kept) < len(blocks):
            self.free += [block for block in blocks if not published[block]]

    def must_copy(self, seq: int, length: int) -> bool:
        block = int(self.table[seq][length // self.block_size])
        return block in self.sharers or self.published[block] > 0

    def withdrawn(self, seq: int, length: int) -> bool:
        """Take the last block out of the index, if the sequence owns it alone: there is no room for a copy."""
        block = int(self.table[seq][length // self.block_size])
        if block in self.sharers:
            return False
        self.withdraw(block)
        return True
