"""What a printed history imports: a device that remembers, and small words for what the history says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Arrival, Strategy
from kvlab.testing.honesty import plain, strange
from kvlab.testing.places import first_live, values
from kvlab.testing.sequence import Sequence, read_only
from kvlab.testing.shadow import Shadows
from kvlab.testing.snapshot import Snapshot, clone

__all__ = ["Device", "Snapshot", "arrival", "clone", "ids", "np", "plain", "raises", "strange"]


class Device:
    """Writes and reads tokens through the strategy's tables."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.shadows = strategy, Shadows(strategy)
        self.pools, self.pieces = self.shadows.pools, self.shadows.pools[0].pieces

    def carry_out(self) -> None:
        """Drain the strategy and apply its moves."""
        self.shadows.apply(self.strategy.drain())

    def write(self, seq: int, tokens: list[int], start: int, space: int = 0) -> None:
        """A launch: tokens[start:] of a sequence whose ids are `tokens`."""
        for group, shadow in enumerate(self.shadows.of):
            value_N = values(sequence(tokens, space), group, start, len(tokens))
            shadow.write(self.strategy.slots(seq, group, start, len(tokens)), value_N)

    def holds(self, seq: int, tokens: list[int], space: int = 0) -> bool:
        """Whether the sequence's first tokens are where its tables say, each with its whole prefix."""
        return all(self._holds(seq, sequence(tokens, space), group) for group in range(len(self.strategy.groups)))

    def _holds(self, seq: int, known: Sequence, group: int) -> bool:
        start, stop = first_live(self.strategy, group, known.known), known.known
        slot_N = self.strategy.slots(seq, group, start, stop)
        return bool(self.shadows.of[group].holds(slot_N, values(known, group, start, stop)).all())


def sequence(tokens: list[int], space: int) -> Sequence:
    return Sequence(0, tokens, len(tokens), len(tokens), len(tokens), len(tokens), space)


def ids(*tokens: int) -> NDArray[np.int32]:
    return read_only(list(tokens))


def arrival(seq: int, tokens: list[int], prompt: int, limit: int, expected: int, space: int = 0) -> Arrival:
    return Arrival(seq, len(tokens), prompt, limit, expected, read_only(tokens), space)


def raises(kind: type[Exception], call: Callable[[], object]) -> bool:
    try:
        call()
    except kind:
        return True
    return False
