"""What prefix caches have in common: blocks are published once written, and found by who begins with the same tokens.

A sequence's full blocks are published when it is told that they are stored, and an arrival takes over the published
blocks it begins with. How they are found again is the strategy's own: a table of chained blocks or a radix tree.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.eviction import Eviction
from kvlab.strategies.idle_blocks import IdleBlocks
from kvlab.strategy import Arrival, Copy, Counts, Grant, Memory, ceil_div

Ids = NDArray[np.int32]  # of tokens


class Match(NamedTuple):
    """What an arrival begins with: whole blocks, then the first `tokens` of block `source`; `rest`: the key behind."""

    blocks: list[int]
    rest: bytes = b""
    source: int = -1
    tokens: int = 0


class CachedBlocks(IdleBlocks):
    """Token counts in `counts`: duplicates, published twice; lost_to_alignment, behind a hit and stored as well."""

    def __init__(self, memory: Memory, block_size: int = 16, eviction: Eviction | None = None) -> None:
        super().__init__(memory, block_size, eviction)
        self.told: dict[int, int] = {}  # sequence -> its blocks that are published, from the first on
        self.space: dict[int, int] = {}  # sequence -> its space
        self.rank: dict[int, int] = {}  # sequence -> its priority, where that is not 0
        self.counts.update(duplicates=0, lost_to_alignment=0)

    # --- the index, by content

    @abstractmethod
    def find(self, keys: Iterator[bytes]) -> Match:
        """Published blocks with these keys, from the first on; the last key may be the start of one only."""

    @abstractmethod
    def alike(self, blocks: list[int], rest: bytes) -> int:
        """Tokens that what is published behind these first blocks begins with as `rest`, the start of a key, does."""

    @abstractmethod
    def publish(self, index: int, before: int, key: bytes, block: int) -> int:
        """Enter a written block, number `index` of its sequence, behind block `before` (-1: none).

        The block that holds this content from now on: another one where the two are to be merged.
        """

    def publish_run(self, index: int, before: int, ids: Ids, space: int, blocks: list[int]) -> list[int]:
        """Enter blocks that follow each other, from number `index` of a sequence with these ids on.

        The blocks that hold their contents from now on.
        """
        held = list[int]()
        for key, block in zip(self.keys(ids, space, index), blocks, strict=True):
            before = self.publish(index + len(held), before, key, block)
            held.append(before)
        return held

    # --- sequences come and go

    def lookup(self, arrival: Arrival) -> int:
        match = self.match(arrival)
        return len(match.blocks) * self.block_size + match.tokens

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        blocks, rest, source, tokens = self.match(arrival)
        hit = len(blocks) * self.block_size + tokens
        fresh = ceil_div(min(hit + new, arrival.length), self.block_size) - len(blocks)
        idle = self.idle.among(blocks)
        woken = len(idle) + (source in self.idle)
        if fresh + woken + ceil_div(leave, self.block_size) > self.available or not self.table.spare:
            return None
        if rest and not tokens:  # stored as well, in a block that goes on in another way
            self.counts["lost_to_alignment"] += self.alike(blocks, rest)
        self.table.open(arrival.seq, blocks)
        self.seat(arrival.seq, len(blocks), arrival.space, arrival.priority)
        if blocks:
            self.own(blocks, idle, arrival.priority)
        if tokens:
            self.keep(source)
        self.reclaim(fresh)
        self.table.append(arrival.seq, self.free[: -fresh - 1 : -1])
        if tokens:
            self.moves.append(Copy(source * self.block_size, self.free[-1] * self.block_size, tokens))
        del self.free[len(self.free) - fresh :]
        return Grant(hit, (len(blocks) + fresh) * self.block_size)

    def seat(self, seq: int, told: int, space: int, priority: int) -> None:
        """Remember of a sequence that was opened what is told of it later on."""
        self.told[seq], self.space[seq] = told, space
        if priority:
            self.rank[seq] = priority

    def release(self, seq: int) -> None:
        super().release(seq)
        del self.told[seq], self.space[seq]
        self.rank.pop(seq, None)

    def fork(self, parent: int, child: Arrival) -> Grant | None:
        grant = super().fork(parent, child)
        if grant is not None:
            told = min(self.told[parent], child.length // self.block_size)
            self.seat(child.seq, told, self.space[parent], self.rank.get(parent, 0))
        return grant

    def swap_in(self, arrival: Arrival) -> Grant | None:
        """What the cache has is not brought again, nor what others brought or never took away."""
        kept, found = self.host.kept[arrival.seq][0], self.match(arrival).blocks
        here = found + self.in_place(kept[len(found) :], arrival.length - len(found) * self.block_size)
        need, idle = len(kept) - len(here), self.idle.among(found)
        if need + len(idle) > self.available or not self.table.spare:
            return None
        self.table.open(arrival.seq, here)
        told = sum(1 for _ in takewhile(self.published.__getitem__, here))
        self.seat(arrival.seq, told, arrival.space, arrival.priority)
        self.own(found, idle, arrival.priority)
        self.join(here[len(found) :])
        self.reclaim(need)
        return self.bring(arrival, kept)

    # --- what was written

    def wrote(self, seq: int, length: int, ids: Ids | None) -> None:
        told, full = self.told[seq], length // self.block_size
        if ids is None or full <= told:
            return
        entries = self.table.data[self.table.row[seq]]
        block_N = entries[told:full]
        if self.sharers:  # a block with a fork that was not told of it: one of them publishes it later
            shared = [index for index, block in enumerate(block_N.tolist()) if block in self.sharers]
            block_N = block_N[: shared[0]] if shared else block_N
        self.told[seq] = full = told + len(block_N)
        before = entries.item(told - 1) if told else -1
        blocks: list[int] = block_N.tolist()
        held = self.publish_run(told, before, ids[: full * self.block_size], self.space[seq], blocks)
        if seq in self.rank or held != blocks:
            self.settle(seq, told, blocks, held)

    def wrote_all(self, seqs: list[int], length_N: Counts, ids: list[Ids] | None) -> None:
        """Quicker for a block more that is not the first, as in a step that only decodes."""
        if ids is None:
            super().wrote_all(seqs, length_N, ids)
            return
        size, rows, entries = self.block_size, self.table.row, self.table.data.data
        told, sharers, publish = self.told, self.sharers, self.publish
        for seq, length, known in zip(seqs, length_N.tolist(), ids, strict=True):
            index, row = told[seq], rows[seq]
            if not index or length // size != index + 1:
                self.wrote(seq, length, known)
                continue
            block = entries[row, index]
            if sharers and block in sharers:
                continue
            key = known[index * size : index * size + size].tobytes()
            now = publish(index, entries[row, index - 1], key, block)
            told[seq] = index + 1
            if now != block or seq in self.rank:
                self.settle(seq, index, [block], [now])

    def settle(self, seq: int, index: int, blocks: list[int], held: list[int]) -> None:
        """The sequence's blocks from `index` on are published; where another one holds the same, it takes that one."""
        priority = self.rank.get(seq, 0)
        for number, (block, now) in enumerate(zip(blocks, held, strict=True), index):
            if now != block:
                self.own([now], self.idle.among([now]), priority)
                self.table.put(seq, number, now)
                self.disown([block])
            elif priority:
                self.priority[block] = priority

    # --- what is looked for

    def match(self, arrival: Arrival) -> Match:
        """What is in place; one token at least is left to compute."""
        if arrival.ids is None:
            return Match([])
        match = self.find(self.keys(arrival.ids[: arrival.length - 1], arrival.space))
        # An arrival that fills the pool would leave no block for the source of a copy, and wait for ever.
        return match if ceil_div(arrival.length, self.block_size) < self.blocks else Match(match.blocks, match.rest)

    def keys(self, ids: Ids, space: int, start: int = 0) -> Iterator[bytes]:
        """The token ids of block after block from block `start` on; before those of the first, its space."""
        data, size = ids[start * self.block_size :].tobytes(), ids.itemsize * self.block_size
        if data and not start:
            yield f"{space}:".encode() + data[:size]
        for at in range(0 if start else size, len(data), size):
            yield data[at : at + size]
