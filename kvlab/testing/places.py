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
    starts: list[int]
    slot_T: NDArray[np.int64]
    which_T: NDArray[np.int64]  # number of the sequence
    position_T: NDArray[np.int64]
    live_T: NDArray[np.bool_]  # stored, and still to be read


def windowed(strategy: Strategy) -> bool:
    return any(group.window for group in strategy.groups)


def first_live(strategy: Strategy, group: int, length: int) -> int:
    """The first token that a sequence of `length` still reads."""
    window = strategy.groups[group].window
    return max(0, length - window + 1) if window else 0


def lay_out(trial: Trial, sequences: list[Sequence], group: int) -> Places:
    """What is stored of the sequences, and what they may write next without asking."""
    strategy, seqs = trial.strategy, [sequence.seq for sequence in sequences]
    starts = [first_live(strategy, group, sequence.done) for sequence in sequences]
    stops = [max(sequence.room, sequence.done) for sequence in sequences]
    if strategy.groups[group].window:  # a ring comes round
        stops = [
            min(stop, sequence.done + strategy.memory.chunk) for stop, sequence in zip(stops, sequences, strict=True)
        ]
    slot_T = gather_from(strategy.tables[group], seqs, starts, stops, strategy.block_size)
    start_B, stop_B = np.array(starts), np.array(stops)
    count_B = stop_B - start_B
    position_T = np.arange(len(slot_T)) - np.repeat(np.cumsum(count_B) - count_B - start_B, count_B)
    which_T = np.repeat(np.arange(len(seqs)), count_B)
    live_T = position_T < np.repeat([sequence.done for sequence in sequences], count_B)
    return Places(group, trial.shadow.of[group], starts, slot_T, which_T, position_T, live_T)


def values(sequence: Sequence, group: int, start: int, stop: int) -> NDArray[np.int64]:
    """What the slots of the tokens [start, stop) hold in a group of layers."""
    value_N = sequence.value[start:stop]
    return value_N + group * APART if group else value_N
