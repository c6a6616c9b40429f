"""Tells a cache what is stored, so that it can publish it; a strategy that keeps nothing is told nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.launch import Launch

if TYPE_CHECKING:
    from kvlab.engine.scheduler import Scheduler


class Teller:
    """The part of a scheduler that tells its strategy of tokens."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.lanes, self.metered = scheduler, scheduler.lanes, scheduler.metered

    def tell(self, lane: int) -> None:
        """Of what is stored of one sequence."""
        if self.metered.tells:
            stored = int(self.lanes.stored[lane])
            ids = None if self.lanes.ids is None else self.lanes.ids[lane, :stored]
            if ids is not None:
                ids.flags.writeable = False  # of this view
            self.metered.wrote(self.lanes.at(lane).id, stored, ids)
            self.scheduler.changes += 1

    def tell_all(self, lane_N: NDArray[np.int64]) -> None:
        """The same of several."""
        if not self.metered.tells or not len(lane_N):
            return
        stored_N, ids = self.lanes.stored[lane_N], None
        if self.lanes.ids is not None:
            known = self.lanes.ids.view()
            known.flags.writeable = False
            ids = [known[lane, :stored] for lane, stored in zip(lane_N.tolist(), stored_N.tolist(), strict=True)]
        self.metered.wrote_all(self.lanes.id[lane_N].tolist(), stored_N, ids)
        self.scheduler.changes += 1

    def tell_prefills(self, launch: Launch) -> None:
        """Of those that computed prompts in a launch, or recomputed them."""
        if self.metered.tells:
            prefills_B = (launch.stop_B - launch.start_B > 1) | (launch.start_B < self.lanes.prompt[launch.lane_B])
            self.tell_all(launch.lane_B[prefills_B])
