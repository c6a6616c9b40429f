"""Blocks that outlive their sequences, kept for the next one that begins with the same tokens.

What prefix caches have in common: a sequence's full blocks are published once they are written, a block that
nobody owns waits in line for eviction, and an arrival takes over the published blocks it begins with.
How published blocks are found again is the strategy's own: a table of chained blocks or a radix tree.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.eviction import LRU, Eviction
from kvlab.strategies.openings import Openings
from kvlab.strategies.paged import Paged
from kvlab.strategy import Arrival, Copy, Counts, Grant, Memory, Usage, ceil_div


class Match(NamedTuple):
    """What an arrival begins with: whole blocks, then the first `tokens` of block `source`."""

    blocks: list[int]
    source: int = -1
    tokens: int = 0


class CachedBlocks(Paged):
    """Blocks are owned, idle (published, owned by nobody) or free. Token counts in `counts`."""

    def __init__(self, memory: Memory, block_size: int = 16, eviction: Eviction | None = None) -> None:
        super().__init__(memory, block_size)
        self.idle: Eviction = LRU() if eviction is None else eviction
        self.blank = 0  # keys of `idle` that are not published
        self.published: dict[int, int] = {}  # block -> where the index has it
        self.priority: dict[int, int] = {}  # published block -> the highest priority among its users; not there: 0
        self.told: dict[int, int] = {}  # sequence -> its blocks that are published, from the first on
        self.kind: dict[int, tuple[int, int]] = {}  # sequence -> space, priority
        self.openings = Openings(4 * block_size)
        self.counts.update(evicted=0, evicted_beyond_need=0, duplicates=0, lost_to_alignment=0)
        self.idle.serve(self)

    # --- the index, by content

    @abstractmethod
    def find(self, keys: list[bytes], rest: bytes) -> Match:
        """Published blocks with these keys, from the first on; `rest`: the start of the key that comes after them."""

    @abstractmethod
    def alike(self, blocks: list[int], rest: bytes) -> int:
        """Tokens that what is published behind these first blocks begins with as `rest`, the start of a key, does."""

    @abstractmethod
    def publish(self, index: int, before: int, key: bytes, block: int) -> int:
        """Enter a written block, number `index` of its sequence, behind block `before` (-1: none).

        The block that holds this content from now on: another one where the two are to be merged.
        """

    @abstractmethod
    def evict(self) -> list[int]:
        """Take the next block, or what must go with it, out of `idle` and of the index."""

    @abstractmethod
    def withdraw(self, block: int) -> None:
        """Take an owned block out of the index."""

    # --- the strategy

    def lookup(self, arrival: Arrival) -> int:
        match = self.match(arrival)
        return len(match.blocks) * self.block_size + match.tokens

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        blocks, source, tokens = self.match(arrival)
        hit = len(blocks) * self.block_size + tokens
        fresh = ceil_div(min(hit + new, arrival.length), self.block_size) - len(blocks)
        woken = sum(block in self.idle for block in blocks) + (source in self.idle)
        if fresh + woken + ceil_div(leave, self.block_size) > self.available or not self.table.spare:
            return None
        if arrival.ids is not None and not tokens:
            self.counts["lost_to_alignment"] += self.lost(arrival.ids[: arrival.length - 1], arrival.space, blocks)
        self.table.open(arrival.seq, blocks)
        self.told[arrival.seq], self.kind[arrival.seq] = len(blocks), (arrival.space, arrival.priority)
        for block in blocks:
            self.own(block, arrival.priority)
        if tokens:
            self.keep(source)
        self.reclaim(fresh)
        self.table.append(arrival.seq, self.free[: -fresh - 1 : -1])
        if tokens:
            self.moves.append(Copy(source * self.block_size, self.free[-1] * self.block_size, tokens))
        del self.free[len(self.free) - fresh :]
        return Grant(hit, (len(blocks) + fresh) * self.block_size)

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

    def release(self, seq: int) -> None:
        super().release(seq)
        del self.told[seq], self.kind[seq]

    def fork(self, parent: int, child: Arrival) -> Grant | None:
        grant = super().fork(parent, child)
        if grant is not None:
            self.told[child.seq] = min(self.told[parent], child.length // self.block_size)
            self.kind[child.seq] = self.kind[parent]
        return grant

    def swap_in(self, arrival: Arrival) -> Grant | None:
        """What the cache has is not brought again, nor what others brought or never took away."""
        kept, found = self.host.kept[arrival.seq][0], self.match(arrival).blocks
        here = found + self.in_place(kept[len(found) :], arrival.length - len(found) * self.block_size)
        need, woken = len(kept) - len(here), sum(block in self.idle for block in found)
        if need + woken > self.available or not self.table.spare:
            return None
        self.table.open(arrival.seq, here)
        self.told[arrival.seq] = sum(1 for _ in takewhile(self.published.__contains__, here))
        self.kind[arrival.seq] = arrival.space, arrival.priority
        for block in found:
            self.own(block, arrival.priority)
        self.join(here[len(found) :])
        self.reclaim(need)
        return self.bring(arrival, kept)

    def wrote(self, seq: int, length: int, ids: NDArray[np.int32] | None) -> None:
        told, full = self.told[seq], length // self.block_size
        if ids is None or full <= told:
            return
        row, (space, priority) = self.table.row[seq], self.kind[seq]
        before, *blocks = [-1] * (not told) + self.table.data[row, max(0, told - 1) : full].tolist()
        keys = self.keys(ids[: full * self.block_size], space, told)
        for key, block in zip(keys, blocks, strict=True):
            if block in self.sharers:  # with a fork that was not told of it: one of them publishes it later
                break
            before = self.publish(told, before, key, block)
            if before != block:
                self.merge(seq, told, before, priority)
            elif priority:
                self.priority[block] = priority
            told += 1
        self.told[seq] = told

    def wrote_all(self, seqs: list[int], length_N: Counts, ids: list[NDArray[np.int32]] | None) -> None:
        """Quicker for a block more that is not the first, as in a step that only decodes."""
        if ids is None:
            super().wrote_all(seqs, length_N, ids)
            return
        size, row, data = self.block_size, self.table.row, self.table.data
        for seq, length, known in zip(seqs, length_N.tolist(), ids, strict=True):
            told = self.told[seq]
            if not told or length // size != told + 1:
                self.wrote(seq, length, known)
                continue
            before, block = data[row[seq], told - 1 : told + 1].tolist()
            if self.sharers and block in self.sharers:
                continue
            now, priority = self.publish(told, before, known[told * size :][:size].tobytes(), block), self.kind[seq][1]
            if now != block:
                self.merge(seq, told, now, priority)
            elif priority:
                self.priority[block] = priority
            self.told[seq] = told + 1

    def merge(self, seq: int, index: int, now: int, priority: int) -> None:
        """The sequence's block number `index` gives way to one that has its content already."""
        block = int(self.table[seq][index])
        self.own(now, priority)
        self.table.put(seq, index, now)
        self.disown([block])

    def usage(self) -> Usage:
        block_bytes = self.block_size * self.memory.token_bytes
        free, cached = len(self.free) + self.blank, len(self.idle) - self.blank
        held, leaving = (self.blocks - free - cached) * block_bytes, len(self.leaving) * block_bytes
        largest = min(self.available * self.block_size, self.longest) if self.table.spare else 0
        return Usage(held, cached * block_bytes, free * block_bytes, largest, leaving)

    def cached_at(self) -> Iterable[tuple[int, int, int]]:
        size = self.block_size
        return ((0, block * size, size) for block in self.published if block in self.idle)

    def clear(self) -> None:
        blocks = []
        while len(self.idle):
            blocks += self.evict()
        for block in blocks:
            self.vacate(block)

    # --- blocks

    def page_group(self, block: int) -> int | None:
        """The one that a block begins in; None: the memory has none."""
        size = self.memory.page_group_bytes
        return block * self.block_size * self.memory.token_bytes // size if size else None

    def lost(self, ids: NDArray[np.int32], space: int, blocks: list[int]) -> int:
        """Of the tokens behind a hit, those that are stored as well, in a block that goes on in another way."""
        rest = self.keys(ids[: (len(blocks) + 1) * self.block_size], space, len(blocks))
        return self.alike(blocks, rest[0]) if rest else 0

    @property
    def available(self) -> int:
        """Blocks that nobody owns."""
        return len(self.free) + len(self.idle)

    def match(self, arrival: Arrival) -> Match:
        """What is in place; one token at least is left to compute."""
        if arrival.ids is None:
            return Match([])
        keys = self.keys(arrival.ids[: arrival.length - 1], arrival.space)
        whole = (arrival.length - 1) // self.block_size
        match = self.find(keys[:whole], b"".join(keys[whole:]))
        # An arrival that fills the pool would leave no block for the source of a copy, and wait for ever.
        return match if ceil_div(arrival.length, self.block_size) < self.blocks else Match(match.blocks)

    def keys(self, ids: NDArray[np.int32], space: int, start: int = 0) -> list[bytes]:
        """The token ids of block after block from block `start` on; before those of the first, its space."""
        data, size = ids[start * self.block_size :].tobytes(), ids.itemsize * self.block_size
        keys = [data] if 0 < len(data) <= size else [data[at : at + size] for at in range(0, len(data), size)]
        if keys and not start:
            keys[0] = f"{space}:".encode() + keys[0]
        return keys

    def own(self, block: int, priority: int) -> None:
        """One owner more for a published block."""
        if block in self.idle:
            self.idle.remove(block)
        elif block in self.leaving:
            del self.leaving[block]
        else:
            self.sharers[block] = self.sharers.get(block, 0) + 1
        if priority > self.priority.get(block, 0):
            self.priority[block] = priority

    def keep(self, block: int) -> None:
        """Hold a block until the next drain has copied from it."""
        self.copied.add(block)
        if block in self.idle:
            self.idle.remove(block)
            self.leaving[block] = None

    def withdrawn(self, seq: int, length: int) -> bool:
        """Take the last block out of the index, if the sequence owns it alone: there is no room for a copy."""
        block = int(self.table[seq][length // self.block_size])
        if block in self.sharers:
            return False
        self.withdraw(block)
        return True

    def must_copy(self, seq: int, length: int) -> bool:
        block = int(self.table[seq][length // self.block_size])
        return block in self.sharers or block in self.published

    def vacate_all(self, blocks: list[int]) -> None:
        kept = [block for block in blocks if block in self.published]
        self.idle.add_all(kept, self.priority)
        self.free += blocks if not kept else [block for block in blocks if block not in self.published]

    def vacate(self, block: int) -> None:
        if block in self.published:
            self.idle.add(block, self.priority.get(block, 0))
        else:
            self.free.append(block)

    def reclaim(self, count: int) -> None:
        """Evict until so many blocks are free."""
        short = count - len(self.free)
        if short <= 0:
            return
        published, blank, taken = len(self.published), self.blank, list[int]()
        while len(taken) < short:
            taken += self.evict()
        self.free[:0] = taken[::-1]  # below the free ones, few as they are: those are taken first, as in vLLM
        evicted = published - len(self.published)
        self.counts["evicted"] += evicted * self.block_size
        self.counts["evicted_beyond_need"] += (evicted - max(0, short - blank)) * self.block_size
