"""Admission: those that wait ask on the terms of an axis, the first first, as long as there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlab.engine.sequence import Sequence, shared_tokens
from kvlab.engine.settings import LONGEST_PREFIX
from kvlab.strategy import Grant

if TYPE_CHECKING:
    from kvlab.engine.scheduler import Scheduler


class Entrance:
    """The part of a scheduler that looks after those that wait."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.lanes = scheduler, scheduler.lanes
        self.metered, self.waiting = scheduler.metered, scheduler.waiting

    def admit(self) -> None:
        left = list[Sequence]()
        self._rank()
        while self.scheduler.may_admit() and len(left) < len(self.lanes.spare) and self._within_budget():
            sequence = self.waiting[0]
            if self.scheduler.siblings.elder(sequence) is not None:
                break  # it forks, which is done before anybody grows
            if not self.scheduler.siblings.has_lanes(sequence):
                break
            if self._waits_for_prefix(sequence):
                left.append(self.waiting.popleft())
                continue
            grant = self._ask(sequence)
            if grant is None and self.scheduler.drain():  # what an undrained move still reads was held until now
                grant = self._ask(sequence)
            if grant is not None:
                self.scheduler.start(self.waiting.popleft(), grant)
            elif len(self.lanes):
                self.scheduler.refused_at = self.scheduler.changes
            else:
                self._alone_refused(sequence)
        self.waiting.extendleft(reversed(left))

    def _rank(self) -> None:
        """Where the cache decides: those who find more of their tokens go first, else whoever came first.

        Within a priority. Without a cache nobody finds anything, and this is the order of arrival.
        """
        scheduler, waiting = self.scheduler, self.waiting
        if scheduler.settings.queue != LONGEST_PREFIX or len(waiting) < 2 or not scheduler.may_admit():
            return
        ranked = sorted(waiting, key=lambda one: (-one.request.priority, -self._found(one)))
        waiting.clear()
        waiting.extend(ranked)
        scheduler.awaited_first()

    def _found(self, sequence: Sequence) -> int:
        """Tokens that it need not compute, were it to start now."""
        if sequence.swapped or not self.metered.finds or self.lanes.ids is None:
            return sequence.swapped
        return self.metered.lookup(self.scheduler.arrival(sequence))

    def _within_budget(self) -> bool:
        budget = self.scheduler.settings.token_budget
        return budget is None or int(self.scheduler.shares().sum()) < budget

    def _ask(self, sequence: Sequence) -> Grant | None:
        arrival = self.scheduler.arrival(sequence)
        usage, kin = self.metered.usage(), self.scheduler.siblings.only_kin(sequence)
        terms = (arrival.length, 0) if kin else self.scheduler.admission.terms(arrival, self.scheduler.running(), usage)
        if terms is None:
            return None
        if not sequence.swapped:
            return self.metered.admit(arrival, *terms)
        spare = (usage.free + usage.cached) // self.scheduler.strategy.memory.token_bytes
        if len(self.lanes) and not kin and spare <= arrival.length + terms[1]:
            return None  # it would be in the way, or could not go on
        return self.metered.swap_in(arrival)

    def _alone_refused(self, sequence: Sequence) -> None:
        """Nobody runs, and there is no room: what lies on the host is computed again, else the request fails."""
        if sequence.swapped:
            self.scheduler.departures.forget(sequence)
        else:
            reason = f"alone, there was no room for {sequence.known:,} tokens and one more"
            self.scheduler.departures.fail(sequence, reason)

    def _waits_for_prefix(self, sequence: Sequence) -> bool:
        """Whether somebody still in prefill will have more of its prefix than it would find now."""
        lanes = self.lanes
        if (
            not (self.scheduler.settings.wait_for_prefix and self.metered.finds and lanes.ids is not None)
            or sequence.swapped
        ):
            return False
        order = lanes.order
        prefill = order[lanes.known[order] - lanes.stored[order] > 1].tolist()
        if not prefill:
            return False
        arrival, unit = self.scheduler.arrival(sequence), self.scheduler.strategy.block_size or 1
        found = None
        for lane in prefill:
            if lanes.at(lane).request.space != sequence.request.space:
                continue
            assert arrival.ids is not None
            common = min(shared_tokens(arrival.ids, lanes.tokens(lane)), arrival.length - 1) // unit * unit
            if common > lanes.stored[lane]:
                found = self.metered.lookup(arrival) if found is None else found
                if common > found:
                    self.scheduler.tally.waits_for_prefix += 1
                    return True
        return False
