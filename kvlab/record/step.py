"""What is recorded of a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Step(NamedTuple):
    """One step, seen when its launch is over and before anybody leaves. Bytes, seconds, counts."""

    time_s: float  # end of the step, from the start of the run
    dt_s: float
    running: int
    waiting: int
    prefill_tokens: int  # computed by sequences that have known tokens left or had: prompts, and recomputation
    decode_seqs: int  # sequences that computed their newest token
    token_state: int
    reservation: int
    internal: int
    cached: int
    external: int
    held: int
    backed: int
    os_committed: int
    preemptions: int  # so far
    admissions: int  # so far
    shared: int = 0  # what sharing saves: the rooms of all sequences together, beyond what is held for them


COUNTS = tuple(map(Step._fields.index, ("time_s", "preemptions", "admissions")))  # the later one's stands for both
SUMS = tuple(map(Step._fields.index, ("dt_s", "prefill_tokens")))
MOST = (Step._fields.index("os_committed"),)


def merged(step_N2C: NDArray[np.float64]) -> NDArray[np.float64]:
    """One row [N, columns] for two neighbours each: time-weighted means, but for sums, counts so far and peaks."""
    dt_N2 = step_N2C[:, :, Step._fields.index("dt_s")]
    weight_N2 = np.where(dt_N2.sum(1, keepdims=True) > 0, dt_N2, 1.0)
    rows: NDArray[np.float64] = np.einsum("nic,ni->nc", step_N2C, weight_N2) / weight_N2.sum(1, keepdims=True)
    rows[:, COUNTS] = step_N2C[:, 1, COUNTS]
    rows[:, SUMS] = step_N2C[:, :, SUMS].sum(1)
    rows[:, MOST] = step_N2C[:, :, MOST].max(1)
    return rows
