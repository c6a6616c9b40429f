"""Who leaves a cache first: least recently used, least often used, first in, lowest priority.

A caching strategy is made with one of these (`eviction`). Keys are whatever it evicts: here blocks. A key is
added when nobody uses it any more, removed when it is used again, and popped when its room is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from heapq import heapify, heappop, heappush

__all__ = ["FIFO", "LFU", "LRU", "Eviction", "Priority"]


class Eviction(ABC):
    """The keys that may be evicted, and in which order."""

    @abstractmethod
    def add(self, key: int, priority: int = 0) -> None:
        """`key` was used until now and may be evicted."""

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


class LRU(Eviction):
    """The one not used for longest. Each call in constant time."""

    def __init__(self) -> None:
        self.order: OrderedDict[int, None] = OrderedDict()

    def add(self, key: int, priority: int = 0) -> None:
        self.order[key] = None

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

    The heap keeps entries of keys that were removed until they come up, or are as many as the others.
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
        if len(self.heap) > 2 * len(self.entry) + 16:
            self.heap = list(self.entry.values())
            heapify(self.heap)

    def remove(self, key: int) -> None:
        del self.entry[key]

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
