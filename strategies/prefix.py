"""Prefix caching by chained blocks: equal beginnings of prompts and outputs are computed and stored once.

As in vLLM (automatic prefix caching): a block is found by its own token ids and the block before it, so that
equal tokens behind different ones never meet. The chain is kept exactly, by place, and a block's ids are the
key itself: two contents with one hash stay two. Blocks leave one by one, a sequence's last ones first.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvlab.eviction import Eviction
from kvlab.strategies.cached_blocks import CachedBlocks, Ids, Match
from kvlab.strategies.places import NONE, Places
from kvlab.strategy import Memory


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
        self.like: dict[int, int] = {}  # and those blocks -> their place; any other's goes by its own number
        self.places = Places(self.blocks, 4 * block_size)
        if null_block and self.blocks:
            self.free.pop()
            self.blocks -= 1
        if one_queue:
            blocks, self.free = self.free[::-1], []
            for block in blocks:
                self.vacate(block)

    def find(self, keys: Iterator[bytes]) -> Match:
        return Match(*self.places.walk(keys))

    def publish(self, index: int, before: int, ids: bytes, block: int) -> int:
        places, place = self.places, self.like.get(before, before) if index else self.places.root
        if places.after[place] == NONE:
            places.append(place, ids, block)
        elif (at := places.step(place, ids)) == NONE:
            places.enter(place, ids, block)
        elif at > places.root:
            places.fill(at, block)
        else:
            self.counts["duplicates"] += self.block_size
            if self.dedupe:
                return at
            self.others.setdefault(at, []).append(block)
            self.like[block] = at
        self.published[block] = 1
        return block

    def publish_run(self, index: int, before: int, ids: Ids, space: int, blocks: list[int]) -> list[int]:
        """Behind the end of a chain all is new."""
        held, published = list[int](), self.published
        for number, key in enumerate(self.keys(ids, space, index)):
            place = self.like.get(before, before)
            if number and self.places.after[place] == NONE:
                self.places.chain(place, ids[(index + number) * self.block_size :].tobytes(), blocks[number:])
                for block in blocks[number:]:
                    published[block] = 1
                return held + blocks[number:]
            before = self.publish(index + number, before, key, blocks[number])
            held.append(before)
        return held

    def alike(self, blocks: list[int], rest: bytes) -> int:
        place = self.like.get(blocks[-1], blocks[-1]) if blocks else self.places.root
        return self.places.alike(place, rest)

    def evict(self, count: int) -> tuple[list[int], int]:
        blocks = self.idle.pop_all(count)
        published = blocks if not self.blank else [block for block in blocks if self.published[block]]
        self.blank -= len(blocks) - len(published)
        self.withdraw_all(published)
        return blocks, len(published)

    def at_once(self, short: int) -> int:
        return 1 if self.blank else short  # which of them were needed is counted one by one

    def withdraw(self, block: int) -> None:
        self.withdraw_all([block])

    def withdraw_all(self, blocks: list[int]) -> None:
        """Take them out of the index, one after the other."""
        published = self.published
        for block in blocks:
            published[block] = 0
        if self.priority:
            for block in blocks:
                self.priority.pop(block, None)
        self.places.leave(blocks if not self.others else (block for block in blocks if not self.handed_on(block)))

    def handed_on(self, block: int) -> bool:
        """A block is gone; whether others hold its content as well: then its place is theirs."""
        at = self.like.pop(block, block)
        others = self.others.pop(at, None)
        if others is None:
            return False
        if block == at:
            at = others.pop(0)
            self.places.rename(block, at)
            del self.like[at]
            self.like.update(dict.fromkeys(others, at))
        else:
            others.remove(block)
        if others:
            self.others[at] = others
        return True

    def vacate(self, block: int) -> None:
        if self.one_queue and not self.published[block]:
            self.idle.add(block)
            self.blank += 1
        else:
            super().vacate(block)

    def vacate_all(self, blocks: list[int]) -> None:
        if not self.one_queue:
            super().vacate_all(blocks)
            return
        self.blank += len([block for block in blocks if not self.published[block]])
        self.idle.add_all(blocks, self.priority)
