"""Growth, and who gives way: those that run ask for the room that this step writes into, the oldest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.sequence import Sequence
from kvlab.strategy import Arrival

if TYPE_CHECKING:
    from kvlab.engine.scheduler import Scheduler


class Growth:
    """The part of a scheduler that looks after those on the device."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.lanes = scheduler, scheduler.lanes
        self.metered, self.waiting = scheduler.metered, scheduler.waiting

    def grow(self) -> None:
        lanes = self.lanes
        order, share = lanes.order, self.scheduler.shares()
        upto = lanes.stored[order] + share
        asks = (upto > lanes.room[order]) | (lanes.asks[order] & (share > 0))
        lane_A, upto_A = order[asks], upto[asks]
        self.scheduler.teller.tell_all(lane_A)
        while len(lane_A):
            room_G = self._extend(lane_A, upto_A)
            granted = lane_A[: len(room_G)]
            lanes.room[granted], lanes.asks[granted] = room_G, False
            lane_A, upto_A = lane_A[len(room_G) :], upto_A[len(room_G) :]
            if len(lane_A) and not self._make_room(int(lane_A[0]), int(upto_A[0])):
                lane_A, upto_A = lane_A[1:], upto_A[1:]
            runs_A = [lanes.sequence[lane] is not None for lane in lane_A.tolist()]
            lane_A, upto_A = lane_A[runs_A], upto_A[runs_A]

    def _extend(self, lane_A: NDArray[np.int64], upto_A: NDArray[np.int64]) -> list[int]:
        """Rooms of those, from the first on, that were not refused."""
        lanes = self.lanes
        return self.metered.extend_all(lanes.id[lane_A].tolist(), lanes.stored[lane_A], upto_A)

    def _make_room(self, lane: int, upto: int) -> bool:
        """After `lane` was refused: whether to ask once more. If not, it has failed or stands still for this step."""
        if self.scheduler.drain():  # what an undrained move still reads is held until then
            return True
        asker = self.lanes.at(lane)
        if self.scheduler.siblings.alone(asker):
            reason = f"alone, it could not grow from {self.lanes.stored[lane]:,} to {upto:,} tokens"
            self.scheduler.departures.fail(asker, reason)
            return False
        victim = self.scheduler.victim.choose(self.scheduler.running(), asker.id)
        if victim is not None and self._give_way(self.lanes.lane[victim]):
            return True
        self.lanes.asks[lane] = True
        self.scheduler.tally.idle += 1
        return False

    def _give_way(self, lane: int) -> bool:
        """Take a sequence off for others' sake, with those that cannot go on without it; False: it stays."""
        sequence = self.lanes.at(lane)
        how = self.scheduler.preemption.how(sequence.id, int(self.lanes.stored[lane]), self._hit_on_return(lane))
        if how == "none":
            return False
        leaving, most = self.scheduler.siblings.together(sequence), self.scheduler.settings.max_preemptions
        if max(one.preemptions for one in leaving) >= most:
            reason = f"would be preempted once more than engine.max_preemptions={most} allows"
            self.scheduler.departures.fail(sequence, reason)
            return True
        for one in leaving:  # the newest goes first, so the oldest ends up in front
            self._preempt(one, swap=how == "swap")
        return True

    def _preempt(self, sequence: Sequence, swap: bool) -> None:
        self.scheduler.departures.take_off(sequence.lane, swap)
        sequence.preemptions += 1
        self.scheduler.tally.preemptions += 1
        self._back_to_queue(sequence)
        if self.scheduler.retracted is not None:
            self.scheduler.retracted()

    def _back_to_queue(self, sequence: Sequence) -> None:
        """At its head, but for those that are waited for."""
        self.waiting.appendleft(sequence)
        self.scheduler.awaited_first()

    def _hit_on_return(self, lane: int) -> int:
        """Tokens that a cache would give back."""
        if not self.metered.finds or self.lanes.ids is None:
            return 0
        self.scheduler.teller.tell(lane)
        sequence, ids = self.lanes.at(lane), self.lanes.tokens(lane).copy()
        request = sequence.request
        arrival = Arrival(
            sequence.id, len(ids), request.prompt_len, request.limit, request.limit, ids, request.space,
            request.priority,
        )  # fmt: skip
        return self.metered.lookup(arrival)

    def unstick(self) -> None:
        """Sequences run, and none can go on: those they stand still for fork, or the newest gives way or fails."""
        self.scheduler.awaited_first()  # others may have come before them when somebody left, or by their rank
        if self.scheduler.siblings.fork():
            return
        lane = self.lanes.newest()
        sequence = self.lanes.at(lane)
        if self.scheduler.siblings.alone(sequence) or not self._give_way(lane):
            reason = f"at {self.lanes.stored[lane]:,} tokens it could not go on, and nobody gives way"
            self.scheduler.departures.fail(sequence, reason)
