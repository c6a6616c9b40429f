"""Launches in which nothing changes: everybody decodes, nobody comes, asks or is done.

A simulator takes as many as there are at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.launch import Launch
from kvlab.engine.sequence import Tokens

if TYPE_CHECKING:
    from kvlab.engine.scheduler import Scheduler


class Quiet:
    """The part of a scheduler that looks after them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.lanes = scheduler, scheduler.lanes

    def launches(self, launch: Launch) -> int:
        """How many launches from this one on, which was planned, only decode, with nobody done at their end.

        Behind the first of them nobody asks or may be admitted either.
        """
        scheduler, lanes, lane_B = self.scheduler, self.lanes, launch.lane_B
        known_B = lanes.known[lane_B]
        if len(scheduler.eos) or (launch.start_B < known_B - 1).any() or (known_B <= lanes.prompt[lane_B]).any():
            return 0  # prompts, or recomputation
        if len(lane_B) < len(lanes) or launch.choices is not None or scheduler.speculation is not None:
            return 0  # somebody stands still, a search chooses, or drafts are verified
        unfinished = int((lanes.end[lane_B] - known_B).min()) - 1
        if scheduler.may_admit() or (scheduler.waiting and scheduler.stepped is not None):
            return min(unfinished, 1)
        return min(unfinished, int((lanes.room[lane_B] - known_B).min()) + 1)

    def advance(self, end_K: NDArray[np.float64], tokens: Tokens) -> None:
        """Quiet launches are over, at these seconds; tokens(sequences [N], positions [N]) are what they sampled."""
        scheduler, lanes, order, steps = self.scheduler, self.lanes, self.lanes.order, len(end_K)
        scheduler.tally.gaps.stretch(lanes.last_s[order], end_K)
        lanes.last_s[order] = end_K[-1]
        if lanes.ids is not None:
            position_BK = lanes.known[order, None] + np.arange(steps)
            id_BK = np.broadcast_to(lanes.id[order, None], position_BK.shape)
            token_N = tokens(id_BK.ravel(), position_BK.ravel())
            lanes.ids[order[:, None], position_BK] = token_N.reshape(position_BK.shape)
        lanes.stored[order] += steps
        lanes.known[order] += steps
        for _ in range(steps if scheduler.stepped is not None else 0):
            scheduler.count_step()
