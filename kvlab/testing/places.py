"""Where the tables say that tokens lie: for each group of layers, those that are live and those yet to be written.

Behind a window of w tokens a sequence of n reads the last w - 1 and the next one; what lies before may be gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Strategy
from kvlab.testing.gather import gather_from
from kvlab.testing.sequence import Sequence
from kvlab.testing.shadow import Shadow

if TYPE_CHECKING:
    from kvlab.testing.trial import Trial

APART = 0x9E3779B97F4A7C1  # what the values of one group of layers differ by from those of the next


class Places(NamedTuple):
    """Tokens [start, stop) of sequences in one group of layers; arrays pack them all."""

    group: int
    shadow: Shadow
    sequences: list[Sequence]
    starts: list[int]
    stops: list[int]
    slot_T: NDArray[np.int64]
    live_T: NDArray[np.bool_]  # stored, and still to be read

    def owner(self, token: int) -> tuple[int, int]:
        """Sequence and position of one of the tokens."""
        for sequence, start, stop in zip(self.sequences, self.starts, self.stops, strict=True):
            if token < stop - start:
                return sequence.seq, start + token
            token -= stop - start
        raise IndexError(token)


def windowed(strategy: Strategy) -> bool:
    return any(group.window for group in strategy.groups)


def first_live(strategy: Strategy, group: int, length: int) -> int:
    """The first token that a sequence of `length` still reads."""
    window = strategy.groups[group].window
    return max(0, length - window + 1) if window else 0


def lay_out(trial: Trial, sequences: list[Sequence], group: int) -> Places:
    """What is stored of the sequences, and what they may write next without asking."""
    strategy, seqs, done = trial.strategy, list(trial.running), [sequence.done for sequence in sequences]
    starts = [0] * len(done)
    stops = [max(sequence.room, sequence.done) for sequence in sequences]
    if strategy.groups[group].window:  # a ring comes round
        starts = [first_live(strategy, group, length) for length in done]
        stops = [min(stop, length + strategy.memory.chunk) for stop, length in zip(stops, done, strict=True)]
    slot_T = gather_from(strategy.tables[group], seqs, starts, stops, strategy.block_size)
    return Places(group, trial.shadow.of[group], sequences, starts, stops, slot_T, first_part(starts, done, stops))


def first_part(starts: list[int], middles: list[int], stops: list[int]) -> NDArray[np.bool_]:
    """Of each range [start, stop), packed: True before its middle."""
    bound_BC = np.array((starts, middles, stops)).T
    return np.repeat(np.arange(2 * len(starts)) % 2 == 0, (bound_BC[:, 1:] - bound_BC[:, :-1]).ravel())


def values(sequence: Sequence, group: int, start: int, stop: int) -> NDArray[np.int64]:
    """What the slots of the tokens [start, stop) hold in a group of layers."""
    value_N = sequence.value[start:stop]
    return value_N + group * APART if group else value_N


def packed_values(sequences: list[Sequence], group: int, starts: list[int], stops: list[int]) -> NDArray[np.int64]:
    """The same for several sequences, one after the other."""
    bounds = zip(sequences, starts, stops, strict=True)
    value_N = np.concatenate([sequence.value[start:stop] for sequence, start, stop in bounds])
    return value_N + group * APART if group else value_N
