"""What a printed history imports: a device that remembers, and small words for what the history says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Arrival, Strategy
from kvlab.testing.honesty import plain, strange
from kvlab.testing.sequence import Sequence, read_only
from kvlab.testing.shadow import Shadow
from kvlab.testing.snapshot import Snapshot, clone

__all__ = ["Device", "Snapshot", "arrival", "clone", "ids", "np", "plain", "raises", "strange"]


class Device:
    """Writes and reads tokens through the strategy's tables."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.shadow = strategy, Shadow(strategy)
        self.pieces = self.shadow.pieces

    def carry_out(self) -> None:
        """Drain the strategy and apply its moves."""
        self.shadow.apply(self.strategy.drain())

    def write(self, seq: int, tokens: list[int], start: int, space: int = 0) -> None:
        """A launch: tokens[start:] of a sequence whose ids are `tokens`."""
        value_N = values(tokens, space)[start:]
        self.shadow.write(self.strategy.slots(seq, 0, start, len(tokens)), value_N)

    def holds(self, seq: int, tokens: list[int], space: int = 0) -> bool:
        """Whether the sequence's first tokens are where its table says, each with its whole prefix."""
        slot_N = self.strategy.slots(seq, 0, 0, len(tokens))
        return bool(self.shadow.holds(slot_N, values(tokens, space)).all())


def values(tokens: list[int], space: int) -> NDArray[np.int64]:
    return Sequence(0, tokens, len(tokens), len(tokens), len(tokens), len(tokens), space).value


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
