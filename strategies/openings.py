"""How much of a prompt is stored beyond the whole blocks that it hits: what sharing by blocks loses.

Kept for the count alone: a block that begins as the prompt goes on, but is not equal to it, is no hit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class Openings:
    """Keys of published blocks by the place behind which they stand, a number of the index's own."""

    block_bytes: int  # of a key's token ids; what is before them must be equal
    after: dict[int, bytes | list[bytes]] = field(default_factory=dict)  # the only one, or all of them sorted

    def enter(self, place: int, key: bytes) -> None:
        others = self.after.setdefault(place, key)
        if others is key:
            return
        if isinstance(others, bytes):
            self.after[place] = sorted((others, key))
        else:
            insort(others, key)

    def leave(self, place: int, key: bytes) -> None:
        others = self.after.pop(place)
        if isinstance(others, bytes):
            return
        del others[bisect_left(others, key)]
        self.after[place] = others[0] if len(others) == 1 else others

    def longest(self, place: int, rest: bytes) -> int:
        """Tokens that the likest of the keys at `place` begins with as `rest` does, which may end inside a block."""
        others = self.after.get(place, [])
        keys = [others] if isinstance(others, bytes) else others
        at = bisect_left(keys, rest)  # in sorted order nobody is more alike than a neighbour
        return max((common(key, rest, self.block_bytes) for key in keys[max(0, at - 1) : at + 1]), default=0)


def common(key: bytes, rest: bytes, block_bytes: int) -> int:
    """Leading token ids that a block's key and the beginning of one have in common, if both are of one space."""
    ahead = len(key) - block_bytes
    if key[: ahead + 4] != rest[: ahead + 4]:  # not even the first id, as mostly
        return 0
    a, b = (np.frombuffer(data[ahead : len(rest)], np.int32) for data in (key, rest))
    return int(np.argmin(np.append(a == b, False)))
