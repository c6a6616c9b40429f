"""What a strategy asks of memory. A store carries the list out as if one by one, in order.

Slots are those of the move's pool, on the host too; a virtual or physical page group stands for one page in each of
the store's reservations together.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Map(NamedTuple):
    """Put physical page group `physical` under virtual page group `virtual`."""

    virtual: int
    physical: int
    pool: int = 0


class Unmap(NamedTuple):
    """Take the memory from under `virtual`; the physical page group keeps its contents."""

    virtual: int
    pool: int = 0


class Drop(NamedTuple):
    """Return an unmapped physical page group to the operating system."""

    physical: int
    pool: int = 0


class Copy(NamedTuple):
    """Copy the keys and values of `tokens` slots, in every layer of the pool; the two ranges never overlap."""

    source: int
    target: int
    tokens: int
    pool: int = 0


class SwapOut(NamedTuple):
    """Copy the keys and values of `tokens` slots from `source` on to the host's slots from `host` on."""

    source: int
    host: int
    tokens: int
    pool: int = 0


class SwapIn(NamedTuple):
    """Copy the keys and values of `tokens` of the host's slots from `host` on to the slots from `target` on."""

    host: int
    target: int
    tokens: int
    pool: int = 0


Move = Map | Unmap | Drop | Copy | SwapOut | SwapIn


def runs(source: NDArray[np.int64], target: NDArray[np.int64]) -> Iterable[tuple[int, int, int]]:
    """(source, target, tokens) for each stretch in which both count up by one."""
    if not len(source):
        return []
    breaks = np.flatnonzero((np.diff(source) != 1) | (np.diff(target) != 1)) + 1
    starts = np.concatenate(([0], breaks))
    lengths = np.diff(np.append(starts, len(source)))
    return zip(source[starts].tolist(), target[starts].tolist(), lengths.tolist(), strict=True)
