"""Who leaves a cache first: least recently used, least often used, first in, lowest priority.

A caching strategy is made with one of these (`eviction`). Keys are whatever it evicts: here blocks. A key is
added when nobody uses it any more, removed when it is used again, and popped when its room is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Protocol

NONE = -1

__all__ = ["FIFO", "LFU", "LRU", "Blocks", "Eviction", "Priority"]


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

    def remove_all(self, keys: list[int]) -> None:
        """Remove one after another; must behave exactly as this loop."""
        for key in keys:
            self.remove(key)

    @abstractmethod
    def pop(self) -> int:
        """The key to evict now, forgotten; KeyError if there is none."""

    def pop_all(self, count: int) -> list[int]:
        """The next ones, one after another, 1 or more; must behave exactly as this loop."""
        return [self.pop() for _ in range(count)]

    @abstractmethod
    def forget(self, key: int) -> None:
        """`key` means nothing any more, whether it was there or in use."""

    def forget_all(self, keys: list[int]) -> None:
        """Forget one after another; must behave exactly as this loop."""
        for key in keys:
            self.forget(key)

    def among(self, keys: list[int]) -> list[int]:
        """Those of the keys that are there, in order."""
        return [key for key in keys if key in self]

    @abstractmethod
    def __contains__(self, key: object) -> bool: ...

    @abstractmethod
    def __len__(self) -> int: ...

    def serve(self, blocks: Blocks) -> None:  # noqa: B027 (a hook)
        """Told once, by the strategy whose blocks the keys are. ValueError: it cannot serve that one."""


class LRU(Eviction):
    """The one not used for longest. Each call in constant time for each key.

    Keys wait in a queue, and each knows its entry: that of a key that was removed is skipped when it comes up, so
    that many come and go at once. Such entries are dropped when a key is removed and they are most of the queue.
    """

    def __init__(self) -> None:
        self.queue: deque[int] = deque()
        self.first = 0  # number of the entry that is first in the queue
        self.entry = array("q")  # of each key; NONE: it is not there
        self.count = 0  # of keys

    def add(self, key: int, priority: int = 0) -> None:
        self.add_all([key], {})

    def add_all(self, keys: list[int], priority: Mapping[int, int]) -> None:
        entry = self.entry
        try:
            for number, key in enumerate(keys, self.first + len(self.queue)):
                entry[key] = number
        except IndexError:  # a key greater than all before: seldom, so that nobody looks for one
            entry.extend([NONE] * (max(keys) + 1 - len(entry)))
            self.add_all(keys, priority)
            return
        self.queue.extend(keys)
        self.count += len(keys)

    def remove(self, key: int) -> None:
        self.remove_all([key])

    def remove_all(self, keys: list[int]) -> None:
        entry, size = self.entry, len(self.entry)
        for key in keys:
            if key >= size or entry[key] == NONE:
                raise KeyError(key)
            entry[key] = NONE
            self.count -= 1
        if not self.count or len(self.queue) > 2 * self.count + 16:
            self.tidy()

    def pop(self) -> int:
        return self.pop_all(1)[0]

    def pop_all(self, count: int) -> list[int]:
        if count > self.count:
            raise KeyError("nothing to evict")
        entry, before, following = self.entry, len(self.queue), self.queue.popleft
        keys = [following() for _ in range(count)] if before == self.count else self.counting(count)
        for key in keys:
            entry[key] = NONE
        self.first += before - len(self.queue)
        self.count -= count
        if not self.count:
            self.tidy()
        return keys

    def counting(self, count: int) -> list[int]:
        """The keys of the first entries that count."""
        entry, number, following, keys = self.entry, self.first, self.queue.popleft, list[int]()
        while len(keys) < count:
            key = following()
            if entry[key] == number:
                keys.append(key)
            number += 1
        return keys

    def tidy(self) -> None:
        """Drop the entries of keys that were removed; without any key, the column of entries too."""
        keys = self.counting(self.count)
        self.queue, self.first, self.count = deque(), 0, 0
        if not keys:
            del self.entry[:]
        self.add_all(keys, {})

    def forget(self, key: int) -> None:
        self.forget_all([key])

    def forget_all(self, keys: list[int]) -> None:
        self.remove_all(self.among(keys))

    def among(self, keys: list[int]) -> list[int]:
        entry, size = self.entry, len(self.entry)
        return [key for key in keys if key < size and entry[key] != NONE]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int) and 0 <= key < len(self.entry) and self.entry[key] != NONE

    def __len__(self) -> int:
        return self.count


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
