"""What one step computes, and which of its rows are sampled.

B sequences of the launch, T packed tokens, M sampled rows, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.sequence import Candidates
from kvlab.moves import Move


@dataclass(frozen=True, slots=True, eq=False)
class Also:
    """All sampled rows of a launch in which some sequence samples more than its newest token, in order of rows."""

    row_M: NDArray[np.int64]  # packed tokens
    of_M: NDArray[np.int64]  # index of their sequence in the launch
    id_M: NDArray[np.int64]  # the sequence whose stream it is: a sample's first token is drawn beside its elder's


@dataclass(slots=True, eq=False)
class Choices:
    """Candidates asked for: of the sampled rows `row_R` the best `count` tokens, which the executor fills in."""

    row_R: NDArray[np.int64]  # indices into the launch's sampled rows
    count: int
    found: list[Candidates] = field(default_factory=list)

    def take(self, token_RC: NDArray[np.int64], logprob_RC: NDArray[np.float64]) -> None:
        self.found += map(Candidates, token_RC, logprob_RC)


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """What one step computes: tokens [start, stop) of each of B sequences, packed one after another."""

    lane_B: NDArray[np.int64]
    row_B: NDArray[np.int64]  # of the strategy's tables
    start_B: NDArray[np.int64]
    stop_B: NDArray[np.int64]
    samples_B: NDArray[np.bool_]  # all known tokens are stored afterwards: a new one is sampled
    ids_T: NDArray[np.int32] | None  # None in runs of lengths only
    beside: list[Move] = field(default_factory=list)  # carried out while it runs: page groups for growth to come
    also: Also | None = None
    choices: Choices | None = None

    def rows(self) -> NDArray[np.int64]:
        """Packed tokens whose logits are needed [M]."""
        if self.also is not None:
            return self.also.row_M
        rows_M: NDArray[np.int64] = (np.cumsum(self.stop_B - self.start_B) - 1)[self.samples_B]
        return rows_M

    def sampled(self) -> NDArray[np.int64]:
        """Index in the launch of the sequence of each sampled row [M]."""
        return np.flatnonzero(self.samples_B) if self.also is None else self.also.of_M

    def positions(self) -> NDArray[np.int64]:
        """Where each sampled token will stand in its sequence [M]."""
        if self.also is None:
            return self.stop_B[self.samples_B]
        first_B = np.cumsum(self.stop_B - self.start_B) - (self.stop_B - self.start_B)
        of_M = self.also.of_M
        positions_M: NDArray[np.int64] = self.start_B[of_M] + self.also.row_M - first_B[of_M] + 1
        return positions_M


def packed(
    of_B: NDArray[np.int64], start_B: NDArray[np.int64], stop_B: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each packed token: of_B of its sequence [T], and its position [T]."""
    new_B = stop_B - start_B
    first_B = np.cumsum(new_B) - new_B
    position_T = np.arange(int(new_B.sum()), dtype=np.int64) + np.repeat(start_B - first_B, new_B)
    return np.repeat(of_B, new_B), position_T
