"""Prefix caching by chained blocks: equal beginnings of prompts and outputs are computed and stored once.

As in vLLM (automatic prefix caching): a block is found by its own token ids and the block before it, so that
equal tokens behind different ones never meet. The chain is kept exactly, by place, and a block's ids are the
key itself: two contents with one hash stay two. Blocks leave one by one, a sequence's last ones first.
"""

from __future__ import annotations

from collections.abc import Hashable

from kvlab.eviction import Eviction
from kvlab.strategies.cached_blocks import CachedBlocks, Match
from kvlab.strategies.openings import common
from kvlab.strategy import Memory

GAP = -1  # in place of a block: hits stop there


class Prefix(CachedBlocks):
    """`duplicates`: what becomes of a block whose content another one holds already.

    keep: both stay, as in vLLM, whose tables only grow; dedupe: the sequence takes the other one, as in Hugging
    Face's continuous batching. one_queue: free blocks wait in line with the idle ones, as in vLLM 0.21, so that
    an idle block can go while free ones are left. null_block: block 0 is never used (vLLM's placeholder).
    """

    def __init__(
        self,
        memory: Memory,
        block_size: int = 16,
        eviction: Eviction | None = None,
        duplicates: str = "keep",
        one_queue: bool = False,
        null_block: bool = False,
    ) -> None:
        super().__init__(memory, block_size, eviction)
        if duplicates not in ("keep", "dedupe"):
            raise ValueError(f"duplicates={duplicates}: allowed is keep, dedupe")
        self.dedupe, self.one_queue = duplicates == "dedupe", one_queue
        self.others: dict[int, list[int]] = {}  # place -> blocks that hold it as well, where duplicates are kept
        self.begin()
        if null_block and self.blocks:
            self.free.pop()
            self.blocks -= 1
        if one_queue:
            blocks, self.free = self.free[::-1], []
            for block in blocks:
                self.vacate(block)

    def find(self, keys: list[bytes], rest: bytes) -> Match:
        found, place = [], 0
        for ids in keys:
            place = self.step(place, ids)
            if self.block[place] == GAP:  # as that of place 0 is
                break
            found.append(self.block[place])
        return Match(found)

    def publish(self, index: int, before: int, ids: bytes, block: int) -> int:
        place = self.published[before] if index else 0
        at = self.after[place] and self.step(place, ids)
        if not at:
            at = self.enter(place, ids, block)
        elif self.block[at] == GAP:
            self.block[at] = block
            if not isinstance(self.after[place], int):
                self.openings.enter(place, ids)
        else:
            self.counts["duplicates"] += self.block_size
            if self.dedupe:
                return self.block[at]
            self.others.setdefault(at, []).append(block)
        self.published[block] = at
        return block

    def alike(self, blocks: list[int], rest: bytes) -> int:
        place = self.published[blocks[-1]] if blocks else 0
        after = self.after[place]
        if not isinstance(after, int):
            return self.openings.longest(place, rest)
        return 0 if self.block[after] == GAP else common(self.ids[after], rest, self.openings.block_bytes)

    def evict(self) -> list[int]:
        block = self.idle.pop()
        if block in self.published:
            self.withdraw(block)
        else:
            self.blank -= 1
        return [block]

    def at_once(self, short: int) -> int:
        return 1 if self.blank else short  # `evict` takes one; which of them were needed is counted one by one

    def withdraw(self, block: int) -> None:
        at = self.published.pop(block)
        if self.priority:
            self.priority.pop(block, None)
        if at in self.others:
            self.replace(at, block)
            return
        self.block[at] = GAP
        place = self.before[at]
        if not isinstance(self.after[place], int):
            self.openings.leave(place, self.ids[at])
        while at and self.block[at] == GAP and not self.after[at]:  # what nobody can come across any more
            place = self.before[at]
            if self.after[place] == at:
                self.after[place] = 0
            else:
                del self.branch(place)[self.key(self.ids[at])]
            self.after[at] = 0
            self.unused.append(at)
            at = place
        if not self.published:
            self.begin()  # nothing piles up

    def replace(self, at: int, block: int) -> None:
        """One of several blocks with the same content is gone."""
        others = self.others[at]
        if self.block[at] == block:
            self.block[at] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self.others[at]

    def vacate(self, block: int) -> None:
        if self.one_queue and block not in self.published:
            self.idle.add(block)
            self.blank += 1
        else:
            super().vacate(block)

    def vacate_all(self, blocks: list[int]) -> None:
        if not self.one_queue:
            super().vacate_all(blocks)
            return
        for block in blocks:
            self.vacate(block)

    # --- places

    def begin(self) -> None:
        """A place is one content of one block behind one chain of blocks, a number; 0 is where chains begin.

        In columns: a place that is done with is given to another content while it is still at hand.
        """
        self.ids = [b""]  # its token ids
        self.before = [0]  # the place before it
        self.block = [GAP]  # the first that holds it
        self.after: list[int | dict[Hashable, int]] = [0]  # the only place behind it (0: none), or several by key
        self.unused: list[int] = []

    def key(self, ids: bytes) -> Hashable:
        """What a place is found by among several: compared in full, whatever its hash."""
        return ids

    def step(self, place: int, ids: bytes) -> int:
        """The place of this content behind that one; 0: there is none."""
        after = self.after[place]
        if isinstance(after, int):
            return after if after and self.ids[after] == ids else 0
        return after.get(self.key(ids), 0)

    def enter(self, place: int, ids: bytes, block: int) -> int:
        """A new place behind that one."""
        if self.unused:
            at = self.unused.pop()
            self.ids[at], self.before[at], self.block[at] = ids, place, block
        else:
            at = len(self.ids)
            self.ids.append(ids)
            self.before.append(place)
            self.block.append(block)
            self.after.append(0)
        if not self.after[place]:
            self.after[place] = at
        else:
            self.branch(place)[self.key(ids)] = at
            self.openings.enter(place, ids)
        return at

    def branch(self, place: int) -> dict[Hashable, int]:
        """What is behind that place, which is not nothing, by key."""
        after = self.after[place]
        if isinstance(after, int):
            if self.block[after] != GAP:
                self.openings.enter(place, self.ids[after])
            after = self.after[place] = {self.key(self.ids[after]): after}
        return after
