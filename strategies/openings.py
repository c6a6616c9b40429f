"""How much of a prompt is stored beyond the whole blocks that it hits: what sharing by blocks loses.

Kept for the count alone: a block that begins as the prompt goes on, but is not equal to it, is no hit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class Openings:
    """Published contents by the place they stand at: behind another one, or at the beginning (of a space)."""

    after: dict[int, list[bytes]] = field(default_factory=dict)  # place -> token ids of what follows it, sorted
    where: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # content -> its place and token ids

    def enter(self, place: int, content: int, ids: bytes) -> None:
        """`content`, a number of the index's own, holds these ids behind `place`."""
        self.where[content] = place, ids
        if place in self.after:
            insort(self.after[place], ids)
        else:
            self.after[place] = [ids]

    def leave(self, content: int) -> None:
        place, ids = self.where.pop(content)
        followers = self.after[place]
        if len(followers) == 1:
            del self.after[place]
        else:
            del followers[bisect_left(followers, ids)]

    def longest(self, place: int, ids: bytes) -> int:
        """Tokens that the likest of the contents behind `place` begins with as `ids` does."""
        followers = self.after.get(place, [])
        at = bisect_left(followers, ids)  # in sorted order nobody is more alike than a neighbour
        return max((common(ids, other) for other in followers[max(0, at - 1) : at + 1]), default=0)


def common(one: bytes, other: bytes) -> int:
    """Leading token ids that are equal."""
    size = min(len(one), len(other))
    a, b = (np.frombuffer(data[:size], np.int32) for data in (one, other))
    return int(np.argmin(np.append(a == b, False)))
