"""Prefix caching by chained blocks: equal beginnings of prompts and outputs are computed and stored once.

As in vLLM (automatic prefix caching): a block is found by its own token ids and the block before it, so that
equal tokens behind different ones never meet. The chain is kept exactly, by number, and a block's ids are the
key itself: two contents with one hash stay two. Blocks leave one by one, a sequence's last ones first.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from kvlab.eviction import Eviction
from kvlab.strategies.cached_blocks import CachedBlocks, Match
from kvlab.strategy import Memory


@dataclass(slots=True)
class Link:
    """One content of one block behind one chain of blocks. Without a block it is a gap: hits stop there."""

    key: tuple[int, Hashable]  # number of the link before it (0: none), token ids
    ids: bytes
    blocks: list[int] = field(default_factory=list)  # those that hold it; several where duplicates are kept
    children: int = 0  # links behind it


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
        self.number_of: dict[tuple[int, Hashable], int] = {}
        self.links: dict[int, Link] = {}
        self.last = 0  # number given last
        if null_block and self.blocks:
            self.free.pop()
            self.blocks -= 1
        if one_queue:
            blocks, self.free = self.free[::-1], []
            for block in blocks:
                self.vacate(block)

    def find(self, keys: list[bytes], rest: bytes) -> Match:
        found, number = [], 0
        for ids in keys:
            number = self.number_of.get(self.key(number, ids), 0)
            if not number or not self.links[number].blocks:
                break
            found.append(self.links[number].blocks[0])
        return Match(found)

    def publish(self, index: int, before: int, ids: bytes, block: int) -> int:
        key = self.key(self.published[before] if index else 0, ids)
        number = self.number_of.get(key, 0) or self.enter(key, ids)
        blocks = self.links[number].blocks
        self.counts["duplicates"] += self.block_size * bool(blocks)
        if blocks and self.dedupe:
            return blocks[0]
        if not blocks:
            self.openings.enter(key[0], ids)
        blocks.append(block)
        self.published[block] = number
        return block

    def alike(self, blocks: list[int], rest: bytes) -> int:
        return self.openings.longest(self.published[blocks[-1]] if blocks else 0, rest)

    def evict(self) -> list[int]:
        block = self.idle.pop()
        if block in self.published:
            self.withdraw(block)
        else:
            self.blank -= 1
        return [block]

    def withdraw(self, block: int) -> None:
        number = self.published.pop(block)
        del self.priority[block]
        link = self.links[number]
        link.blocks.remove(block)
        if not link.blocks:
            self.openings.leave(link.key[0], link.ids)
        while number:  # what nobody can come across any more
            link = self.links[number]
            if link.blocks or link.children:
                break
            del self.number_of[link.key], self.links[number]
            number = link.key[0]
            if number:
                self.links[number].children -= 1

    def vacate(self, block: int) -> None:
        if self.one_queue and block not in self.published:
            self.idle.add(block)
            self.blank += 1
        else:
            super().vacate(block)

    def key(self, before: int, ids: bytes) -> tuple[int, Hashable]:
        """What a block is found by: compared in full, whatever its hash."""
        return before, ids

    def enter(self, key: tuple[int, Hashable], ids: bytes) -> int:
        """A new link."""
        self.last += 1
        self.number_of[key], self.links[self.last] = self.last, Link(key, ids)
        if key[0]:
            self.links[key[0]].children += 1
        return self.last
