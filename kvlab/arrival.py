"""Sequences that ask a strategy for room, one or many, and its answer.

Strategies import these from kvlab.strategy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]  # of tokens, [N]


@dataclass(slots=True, eq=False)
class Arrival:
    """A sequence that asks for room: new, back from preemption, or the child of a fork."""

    seq: int
    length: int  # tokens known: the prompt, and the output so far when it is back
    prompt: int  # of which prompt
    limit: int  # tokens it may ever hold, as the client declared
    expected: int  # tokens the forecast says it will hold
    ids: NDArray[np.int32] | None = None  # read-only [length]; None in runs of lengths only
    space: int = 0  # sequences of different spaces (adapter, salt, image) never share
    priority: int = 0


class Arrivals(NamedTuple):
    """Sequences that ask for room one after another, in columns [N] of Arrival's fields; none has ids."""

    seq: NDArray[np.int64]
    length: Counts
    prompt: Counts
    limit: Counts
    expected: Counts

    def each(self) -> Iterator[Arrival]:
        return map(Arrival, *(column.tolist() for column in self))


class Grant(NamedTuple):
    hit: int  # leading tokens in place once the moves are done
    room: int  # tokens the sequence may hold before it must ask again
