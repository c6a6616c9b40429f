"""Departures: sequences finish, fail, or are taken off for others' sake, and give back what they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlab.engine.sequence import Sequence

if TYPE_CHECKING:
    from kvlab.engine.scheduler import Scheduler


class Departures:
    """The part of a scheduler that looks after those that leave."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.lanes = scheduler, scheduler.lanes
        self.metered, self.tally = scheduler.metered, scheduler.tally
        self.learn = getattr(scheduler.forecast, "learn", None)  # hooks that an axis may lack
        self.told_finished = getattr(scheduler.admission, "finished", None)

    def finish(self, lane: int, now: float) -> None:
        """It has all of its tokens, at `now` seconds."""
        sequence = self.take_off(lane)
        sequence.finish_s = now
        self.end(sequence, "finished", "")

    def fail(self, sequence: Sequence, reason: str) -> None:
        """The request fails, with every sequence that it has."""
        family = sequence.family
        for one in [sequence] if family is None else list(family.live.values()):
            if one.lane >= 0:
                self.take_off(one.lane)
            else:
                self.scheduler.waiting.remove(one)
            if one.swapped:
                self.forget(one)
            self.end(one, "failed", reason)

    def forget(self, sequence: Sequence) -> None:
        """What lies of it on the host is given up."""
        self.metered.forget(sequence.id)
        self.scheduler.arrivals.pop(sequence.id, None)
        sequence.swapped = 0
        self.scheduler.changes += 1

    def end(self, sequence: Sequence, outcome: str, reason: str) -> None:
        """Nothing more will become of it; it has no lane and does not wait."""
        self.scheduler.arrivals.pop(sequence.id, None)
        sequence.outcome, sequence.reason = outcome, reason
        if outcome == "finished" and (self.learn or self.told_finished):
            self._teach(sequence)
        family = sequence.family
        self.tally.num_ended += family is None or self.scheduler.siblings.ended(family, sequence)
        self.scheduler.on_end(sequence)

    def take_off(self, lane: int, swap: bool = False) -> Sequence:
        """Off the device; to the host where `swap` asks for it and the host has room."""
        self.scheduler.teller.tell(lane)
        stored = int(self.lanes.stored[lane])
        kept = min(stored, int(self.lanes.known[lane]) - 1)  # a beam computes its newest token again
        out = swap and kept > 0 and self.metered.swap_out(int(self.lanes.id[lane]), kept)
        sequence = self.lanes.remove(lane)
        if out:
            sequence.swapped = kept
            self.tally.swapped_out_tokens += kept
        else:
            self.tally.swaps_refused += swap
            self.metered.release(sequence.id)
        self.tally.recomputed_tokens += max(0, min(stored, sequence.reached) - sequence.found)
        sequence.reached = max(stored, sequence.reached)
        self.scheduler.changes += 1
        return sequence

    def _teach(self, sequence: Sequence) -> None:
        """What the axes learn from one that has finished."""
        request, output = sequence.request, sequence.known - sequence.request.prompt_len
        if self.learn is not None:
            self.learn(request, output)
        if self.told_finished is not None:
            self.told_finished(output, request.limit - request.prompt_len)
