"""How much of a prompt is stored beyond the whole blocks that it hits: what sharing by blocks loses.

Kept for the count alone: a block that begins as the prompt goes on, but is not equal to it, is no hit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class Openings:
    """Keys of published blocks by the place behind which they stand, a number of the index's own.

    Most have nothing in common, so that those which begin with the same token are looked for at once.
    """

    block_bytes: int  # of a key's token ids; what is before them must be equal
    root: int  # the place of the first ones
    after: dict[int, dict[bytes, bytes | list[bytes]]] = field(default_factory=dict)  # the only one, or all, sorted

    def enter(self, place: int, key: bytes) -> None:
        alike = self.after.get(place)
        if alike is None:
            alike = self.after[place] = {}
        first = self.first(place, key)
        others = alike.setdefault(first, key)
        if others is key:
            return
        if isinstance(others, bytes):
            alike[first] = sorted((others, key))
        else:
            insort(others, key)

    def leave(self, place: int, key: bytes) -> None:
        alike = self.after[place]
        first = self.first(place, key)
        others = alike.pop(first)
        if isinstance(others, list):
            del others[bisect_left(others, key)]
            alike[first] = others[0] if len(others) == 1 else others
        elif not alike:
            del self.after[place]

    def longest(self, place: int, rest: bytes) -> int:
        """Tokens that the likest of the keys at `place` begins with as `rest` does, which may end inside a block."""
        others = self.after.get(place, {}).get(self.first(place, rest))
        if others is None:
            return 0
        keys = [others] if isinstance(others, bytes) else others
        at = bisect_left(keys, rest)  # in sorted order nobody is more alike than a neighbour
        return max(common(key, rest, self.block_bytes) for key in keys[max(0, at - 1) : at + 1])

    def first(self, place: int, key: bytes) -> bytes:
        """What a key begins with: its first token, and its space where it is the first of its sequence."""
        return key[: key.index(b":") + 5] if place == self.root else key[:4]


def common(key: bytes, rest: bytes, block_bytes: int) -> int:
    """Leading token ids that a block's key and the beginning of one have in common, if both are of one space."""
    ahead = len(key) - block_bytes
    if key[: ahead + 4] != rest[: ahead + 4]:  # not even the first id, as mostly
        return 0
    a, b = (np.frombuffer(data[ahead : len(rest)], np.int32) for data in (key, rest))
    return int(np.argmin(np.append(a == b, False)))
