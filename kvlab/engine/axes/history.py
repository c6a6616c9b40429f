"""Output lengths of the requests that were done last, in order of length."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque


class History:
    """At most `window` lengths; it says nothing before it knows `least` of them."""

    def __init__(self, window: int, least: int) -> None:
        if not 1 <= least <= window:
            raise ValueError(f"least={least}, window={window}: allowed is 1 <= least <= window")
        self.window, self.least = window, least
        self.recent: deque[int] = deque()
        self.ordered: list[int] = []

    def add(self, length: int) -> None:
        if len(self.recent) == self.window:
            self.ordered.remove(self.recent.popleft())
        self.recent.append(length)
        insort(self.ordered, length)

    def at(self, share: float, above: int = -1) -> int | None:
        """Of the lengths beyond `above` the one that `share` of them do not exceed; None: too few are known."""
        if len(self.ordered) < self.least:
            return None
        first = bisect_right(self.ordered, above)
        if first == len(self.ordered):
            return None
        return self.ordered[first + min(int(share * (len(self.ordered) - first)), len(self.ordered) - first - 1)]
