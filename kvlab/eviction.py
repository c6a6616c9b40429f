"""Who leaves a cache first: least recently used, least often used, first in, lowest priority, by page group.

A caching strategy is made with one of these (`eviction`). Keys are whatever it evicts: here blocks. A key is
added when nobody uses it any more, removed when it is used again, and popped when its room is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Protocol

__all__ = ["FIFO", "LFU", "LRU", "Blocks", "Eviction", "PageAware", "Priority"]


class Blocks(Protocol):
    """What an order of eviction may ask of the strategy that it serves."""

    free: list[int]  # owned by nobody, and not among the keys

    def page_group(self, block: int) -> int | None:
        """The page group that a block begins in; None: the memory has none."""


class Eviction(ABC):
    """The keys that may be evicted, and in which order."""

    @abstractmethod
    def add(self, key: int, priority: int = 0) -> None:
        """`key` was used until now and may be evicted."""

    def add_all(self, keys: list[int], priority: Mapping[int, int]) -> None:
        """Add one after another, with 0 where `priority` has none; must behave exactly as this loop."""
        for key in keys:
            self.add(key, priority.get(key, 0))

    @abstractmethod
    def remove(self, key: int) -> None:
        """`key` is in use again; KeyError if it was not there. What is remembered of it stays."""

    @abstractmethod
    def pop(self) -> int:
        """The key to evict now, forgotten; KeyError if there is none."""

    @abstractmethod
    def forget(self, key: int) -> None:
        """`key` means nothing any more, whether it was there or in use."""

    @abstractmethod
    def __contains__(self, key: object) -> bool: ...

    @abstractmethod
    def __len__(self) -> int: ...

    def serve(self, blocks: Blocks) -> None:  # noqa: B027 (a hook)
        """Told once, by the strategy whose blocks the keys are. ValueError: it cannot serve that one."""


class LRU(Eviction):
    """The one not used for longest. Each call in constant time."""

    def __init__(self) -> None:
        self.order: OrderedDict[int, None] = OrderedDict()

    def add(self, key: int, priority: int = 0) -> None:
        self.order[key] = None

    def add_all(self, keys: list[int], priority: Mapping[int, int]) -> None:
        self.order.update(dict.fromkeys(keys))

    def remove(self, key: int) -> None:
        del self.order[key]

    def pop(self) -> int:
        return self.order.popitem(last=False)[0]

    def forget(self, key: int) -> None:
        self.order.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self.order

    def __len__(self) -> int:
        return len(self.order)


class Ranked(Eviction):
    """The lowest rank, among equals the one not used for longest. Each call in logarithmic time.

    The heap keeps entries of keys that left until they come up, or are as many as the others.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, int]] = []  # (rank, time, key)
        self.entry: dict[int, tuple[int, int, int]] = {}  # key -> its entry in the heap that counts
        self.past: dict[int, int] = {}  # key -> its rank so far, also of keys in use
        self.time = 0

    @abstractmethod
    def rank(self, past: int | None, priority: int) -> int:
        """The rank of a key that is added; `past`: its rank when it was added before."""

    def add(self, key: int, priority: int = 0) -> None:
        self.time += 1
        rank = self.past[key] = self.rank(self.past.get(key), priority)
        entry = self.entry[key] = (rank, self.time, key)
        heappush(self.heap, entry)
        self.tidy_heap()

    def remove(self, key: int) -> None:
        del self.entry[key]
        self.tidy_heap()

    def pop(self) -> int:
        while self.heap:
            entry = heappop(self.heap)
            key = entry[2]
            if self.entry.get(key) == entry:
                self.forget(key)
                return key
        raise KeyError("nothing to evict")

    def forget(self, key: int) -> None:
        self.entry.pop(key, None)
        self.past.pop(key, None)
        self.tidy_heap()

    def tidy_heap(self) -> None:
        """Drop the entries of keys that left, once they are most of the heap."""
        if len(self.heap) > 2 * len(self.entry) + 16:
            self.heap = list(self.entry.values())
            heapify(self.heap)

    def __contains__(self, key: object) -> bool:
        return key in self.entry

    def __len__(self) -> int:
        return len(self.entry)


class LFU(Ranked):
    """The one used least often since it came in."""

    def rank(self, past: int | None, priority: int) -> int:
        return (past or 0) + 1


class FIFO(Ranked):
    """The one that came in first, however often it was used since."""

    def rank(self, past: int | None, priority: int) -> int:
        return self.time if past is None else past


class Priority(Ranked):
    """The lowest priority; a key has the highest that it was ever added with."""

    def rank(self, past: int | None, priority: int) -> int:
        return priority if past is None else max(past, priority)


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
