"""An order of eviction by page group: groups empty whole, so that what maps them can take them back."""

from __future__ import annotations

from collections import Counter, OrderedDict
from heapq import heapify, heappop, heappush

from kvlab.eviction import Blocks, Eviction


class PageAware(Eviction):
    """A block of the page group that most is idle or free of, and then the others of that group: groups empty whole.

    Among equal groups the one not used for longest, in a group the block not used for longest. `blocks` of a page
    group; None: as many as the memory's page groups hold.
    """

    def __init__(self, blocks: int | None = None) -> None:
        if blocks is not None and (isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1):
            raise ValueError(
                f"blocks={blocks}: allowed is a whole number of blocks in a page group, 1 or more; or null"
            )
        self.blocks, self.time, self.count = blocks, 0, 0
        self.strategy: Blocks | None = None
        self.groups: dict[int, OrderedDict[int, None]] = {}  # page group -> its keys, the one used last at the end
        self.used: dict[int, int] = {}  # page group -> when a key of it was added last
        self.heap: list[tuple[int, int, int]] = []  # (-idle and free blocks, used, page group): some out of date
        self.begun: int | None = None  # the page group of which keys are being popped

    def serve(self, blocks: Blocks) -> None:
        if self.blocks is None and blocks.page_group(0) is None:
            raise ValueError("eviction=page_aware: this strategy's memory has no page groups; give eviction.blocks")
        self.strategy = blocks

    def add(self, key: int, priority: int = 0) -> None:
        self.time, self.count = self.time + 1, self.count + 1
        group = self.group(key)
        self.groups.setdefault(group, OrderedDict())[key] = None
        self.used[group] = self.time
        heappush(self.heap, (-len(self.groups[group]), self.time, group))
        self.tidy_heap()

    def remove(self, key: int) -> None:
        group = self.group(key)
        del self.groups[group][key]
        self.tidy(group)

    def pop(self) -> int:
        if self.begun not in self.groups:
            self.begun = self.fullest()
        key = self.groups[self.begun].popitem(last=False)[0]
        self.tidy(self.begun)
        return key

    def forget(self, key: int) -> None:
        if key in self:
            self.remove(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int) and key in self.groups.get(self.group(key), ())

    def __len__(self) -> int:
        return self.count

    def group(self, key: int) -> int:
        if self.blocks is not None:
            return key // self.blocks
        group = self.strategy.page_group(key) if self.strategy else None
        assert group is not None, "serve() comes first, and has asked"
        return group

    def tidy(self, group: int) -> None:
        self.count -= 1
        if not self.groups[group]:
            del self.groups[group], self.used[group]
            self.tidy_heap()

    def tidy_heap(self) -> None:
        """Drop what is out of date, once it is most of the heap."""
        if len(self.heap) > 4 * len(self.groups) + 16:
            self.heap = [(-len(keys), self.used[group], group) for group, keys in self.groups.items()]
            heapify(self.heap)

    def fullest(self) -> int:
        """The page group with most blocks that nobody owns, and a key among them; KeyError if there is none."""
        # Who evicts has few free blocks left, or none: to count them by group is cheap.
        free = Counter(map(self.group, self.strategy.free)) if self.strategy else Counter[int]()
        for group in free.keys() & self.groups.keys():
            heappush(self.heap, (-len(self.groups[group]) - free[group], self.used[group], group))
        while self.heap:
            entry = heappop(self.heap)
            group = entry[2]
            if group not in self.groups:
                continue
            now = (-len(self.groups[group]) - free[group], self.used[group], group)
            if now == entry:
                heappush(self.heap, (-len(self.groups[group]), self.used[group], group))
                return group
            if now > entry:
                heappush(self.heap, now)
        raise KeyError("nothing to evict")
