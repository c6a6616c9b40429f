"""Chains of contents: where a cache by chained blocks keeps what it has published.

A place is one content of one block behind one chain of blocks. It goes by the number of the block that holds it, and
what is known of it lies in columns: packed, because it is looked at again when all else has left the CPU's caches.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from struct import pack_into

from kvlab.strategies.openings import Openings, common

NONE, SEVERAL = -1, -2  # in place of the only place behind one


class Places:
    """Numbers beyond those of blocks: `root`, where chains begin, and then gaps, contents that nobody holds any more.

    A gap is kept as long as there is something behind it.
    """

    def __init__(self, blocks: int, block_bytes: int) -> None:
        self.root, self.block_bytes = blocks, block_bytes
        self.layout = f"{block_bytes}s"
        self.ids = bytearray(block_bytes * (blocks + 1))  # of each place
        self.heads: dict[int, bytes] = {}  # whole keys of those behind the root, which begin with their space
        self.before = array("i", [NONE]) * (blocks + 1)  # the place before it
        self.after = array("i", [NONE]) * (blocks + 1)  # the only place behind it
        self.several: dict[int, dict[Hashable, int]] = {self.root: {}}  # the places behind it by key, instead
        self.after[self.root] = SEVERAL
        self.openings = Openings(block_bytes, self.root)  # of what is held of those
        self.unused: list[int] = []  # numbers of gaps that were filled or forgotten

    def hashed(self, key: bytes) -> Hashable:
        """What a place is found by among several: compared in full, whatever its hash."""
        return key

    def key(self, place: int) -> bytes:
        """Of its content, as it was entered."""
        head, start = self.heads.get(place), place * self.block_bytes
        return bytes(self.ids[start : start + self.block_bytes]) if head is None else head

    def step(self, place: int, key: bytes) -> int:
        """The place of this content behind that one, or NONE."""
        after = self.after[place]
        if after == SEVERAL:
            return self.several[place].get(self.hashed(key), NONE)
        start = after * self.block_bytes
        return after if after != NONE and self.ids[start : start + self.block_bytes] == key else NONE

    def walk(self, keys: Iterable[bytes]) -> tuple[list[int], bytes]:
        """Blocks that hold these contents, one behind the other; and the first key of which there is none."""
        ids, ahead, root, size = self.ids, self.after, self.root, self.block_bytes
        found, place = list[int](), root
        for key in keys:
            after = ahead[place]
            if after == SEVERAL:
                after = self.several[place].get(self.hashed(key), NONE)
            elif after != NONE and ids[after * size : after * size + size] != key:
                after = NONE
            if not 0 <= after < root:  # none, or a gap
                return found, key
            found.append(after)
            place = after
        return found, b""

    def alike(self, place: int, rest: bytes) -> int:
        """Tokens that what is held behind that place begins with as `rest` does."""
        after = self.after[place]
        if after == SEVERAL:
            return self.openings.longest(place, rest)
        return common(self.key(after), rest, self.block_bytes) if 0 <= after < self.root else 0

    # --- contents come

    def append(self, place: int, key: bytes, block: int) -> None:
        """A new content behind that place, behind which there is nothing."""
        pack_into(self.layout, self.ids, block * self.block_bytes, key)
        self.before[block] = place
        self.after[place] = block

    def chain(self, place: int, keys: bytes, blocks: list[int]) -> None:
        """The same for several, one behind the other: all their token ids and their blocks."""
        ids, before, after, layout, size = self.ids, self.before, self.after, self.layout, self.block_bytes
        for at, block in zip(range(0, len(keys), size), blocks, strict=True):
            pack_into(layout, ids, block * size, keys[at : at + size])
            before[block] = place
            after[place] = place = block

    def enter(self, place: int, key: bytes, block: int) -> None:
        """A new content behind that place, behind which there are others, or which is the root."""
        pack_into(self.layout, self.ids, block * self.block_bytes, key[-self.block_bytes :])
        self.before[block] = place
        if place == self.root:
            self.heads[block] = key
        self.branch(place)[self.hashed(key)] = block
        self.openings.enter(place, key)

    def fill(self, gap: int, block: int) -> None:
        """A block holds this content again."""
        self.rename(gap, block)
        self.forget(gap)
        place = self.before[block]
        if self.after[place] == SEVERAL:
            self.openings.enter(place, self.key(block))

    def branch(self, place: int) -> dict[Hashable, int]:
        """What is behind that place, which is not nothing, by key."""
        after = self.after[place]
        if after != SEVERAL:
            key = self.key(after)
            if after < self.root:
                self.openings.enter(place, key)
            self.after[place], self.several[place] = SEVERAL, {self.hashed(key): after}
        return self.several[place]

    # --- contents go

    def leave(self, places: Iterable[int]) -> None:
        """Nobody holds these contents any more, one after the other."""
        before, after, root = self.before, self.after, self.root
        for at in places:
            place = before[at]
            if after[at] == NONE and after[place] == at:  # as mostly: the end of a chain
                after[place] = NONE
                if place > root:
                    self.prune(place)
            else:
                self.part(place, at)

    def part(self, place: int, at: int) -> None:
        """The same for one of several behind that place, or one that has something behind it."""
        if self.after[place] == SEVERAL:
            self.openings.leave(place, self.key(at))
        if self.after[at] == NONE:
            self.cut(place, at)
            self.prune(place)
        else:
            self.rename(at, self.gap())

    def prune(self, place: int) -> None:
        """Forget a gap that nobody can come across any more, and those before it."""
        while place > self.root and self.after[place] == NONE:
            gap, place = place, self.before[place]
            self.cut(place, gap)
            self.forget(gap)

    def cut(self, place: int, at: int) -> None:
        """What is at the end of a chain is no longer behind that place."""
        if self.after[place] == at:
            self.after[place] = NONE
            return
        others = self.several[place]
        del others[self.hashed(self.key(at))]
        if place == self.root:
            del self.heads[at]
        elif not others:
            self.after[place] = NONE
            del self.several[place]

    # --- numbers

    def gap(self) -> int:
        """A number that no place goes by."""
        if not self.unused:
            self.unused.append(len(self.before))
            self.ids += bytes(self.block_bytes)
            self.before.append(NONE)
            self.after.append(NONE)
        return self.unused.pop()

    def forget(self, gap: int) -> None:
        """No place goes by that number any more: with the last one, the columns are as short as at first."""
        self.unused.append(gap)
        if self.root + 1 + len(self.unused) == len(self.before):
            self.unused.clear()
            del self.before[self.root + 1 :], self.after[self.root + 1 :]
            del self.ids[len(self.before) * self.block_bytes :]

    def rename(self, old: int, new: int) -> None:
        """A place goes by another number: its block, or that it is a gap, has changed."""
        place, after, key = self.before[old], self.after[old], self.key(old)
        pack_into(self.layout, self.ids, new * self.block_bytes, key[-self.block_bytes :])
        self.before[new], self.after[new], self.after[old] = place, after, NONE
        if self.after[place] == old:
            self.after[place] = new
        else:
            self.several[place][self.hashed(key)] = new
        if place == self.root:
            self.heads[new] = self.heads.pop(old)
        if after == SEVERAL:
            self.several[new] = self.several.pop(old)
            if old in self.openings.after:
                self.openings.after[new] = self.openings.after.pop(old)
        for behind in self.several[new].values() if after == SEVERAL else [after] * (after != NONE):
            self.before[behind] = new
