"""What requests of several sequences need: samples of one prompt, and the beams of a search.

A sibling that waits forks from one that runs as soon as their tokens in common are stored, before anybody grows.
Beams go on together, as kvlab.engine.search says: all of them are on the device, or none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.launch import Also, Choices, Launch
from kvlab.engine.search import Search
from kvlab.engine.sequence import BRANCH_BITS, Family, Sequence, shared_tokens
from kvlab.request import Request

if TYPE_CHECKING:
    from kvlab.engine.scheduler import Scheduler


class Siblings:
    """The part of a scheduler that looks after families."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.lanes = scheduler, scheduler.lanes
        self.search = Search(scheduler)
        self.families = 0  # that have not ended: everything here is for them

    # --- they come and go

    def open(self, request: Request) -> list[Sequence]:
        """Its first sequence; or where nothing is to be shared all of its samples."""
        self.families += 1
        family = Family(request)
        count = 1 if self.scheduler.settings.fork else request.n
        return [family.make(request.prompt_len) for _ in range(count)]

    def started(self, sequence: Sequence, lane: int) -> None:
        """It got a lane. A first sample draws the first tokens of the others, too."""
        family = sequence.family
        if family is not None and family.branches < family.request.n:
            self.lanes.brood[lane] = family.request.n - family.branches

    def ended(self, family: Family, sequence: Sequence) -> bool:
        """Whether it was the last one of its request."""
        family.live.pop(sequence.id, None)
        if sequence.outcome != "finished":
            family.outcome = sequence.outcome
        self.families -= not family.live
        return not family.live

    def alone(self, sequence: Sequence) -> bool:
        """Whether nobody runs whose leaving would help it: no other, or only beams of the same search."""
        lanes, family = self.lanes, sequence.family
        if len(lanes) == 1 or family is None or not family.request.beams:
            return len(lanes) == 1
        return all(lanes.at(lane).family is family for lane in lanes.order.tolist())

    def only_kin(self, sequence: Sequence) -> bool:
        """Whether nobody runs but beams of its search, which stand still for it: nothing is to be left to others."""
        lanes, family = self.lanes, sequence.family
        if family is None or not family.request.beams or not len(lanes):
            return False
        return all(lanes.at(lane).family is family for lane in lanes.order.tolist())

    def together(self, sequence: Sequence) -> list[Sequence]:
        """Those on the device that leave with it, the newest first: a search cannot go on without one of its beams."""
        family = sequence.family
        if family is None or not family.request.beams:
            return [sequence]
        family.ready.clear()  # they compute their newest token again
        beams = [self.lanes.at(lane) for lane in self.lanes.order.tolist()]
        return [one for one in reversed(beams) if one.family is family]

    def has_lanes(self, sequence: Sequence) -> bool:
        """Whether lanes are left for all sequences of its request, beside those that running requests will have yet.

        Else those who are to fork find none, and what they wait for in vain has to give way.
        """
        lanes = self.lanes
        if not self.families or not len(lanes) or not self.scheduler.settings.fork:
            return True
        running = Counter(lanes.at(lane).family for lane in lanes.order.tolist())
        promised = sum(_width(family) - count for family, count in running.items() if family is not None)
        return len(lanes.spare) - promised >= (_width(sequence.family) if sequence.family is not None else 1)

    # --- forks

    def elder(self, sequence: Sequence) -> Sequence | None:
        """The running sibling that it forks from."""
        family = sequence.family
        if family is None or sequence.swapped or not self.scheduler.settings.fork:
            return None
        return next((one for one in family.live.values() if one.lane >= 0), None)

    def awaited(self) -> list[Sequence]:
        """Those that wait while siblings run that they fork from, or that stand still without them."""
        scheduler, lanes = self.scheduler, self.lanes
        if not self.families:
            return []
        running = {lanes.at(lane).family for lane in lanes.order.tolist()} - {None}
        kin = [one for one in scheduler.waiting if one.family in running]
        return [one for one in kin if one.request.beams or self.elder(one) is not None]

    def fork(self) -> bool:
        """Those at the head of the queue that have a running sibling start with what they have in common.

        Whether there was one.
        """
        scheduler, waiting, before = self.scheduler, self.scheduler.waiting, self.scheduler.tally.forks
        while self.families and waiting and self.lanes.spare and scheduler.refused_at != scheduler.changes:
            elder = self.elder(waiting[0])
            if elder is None or not self._fork(elder, waiting[0]):
                break
        return scheduler.tally.forks > before

    def _fork(self, elder: Sequence, sequence: Sequence) -> bool:
        scheduler, lanes = self.scheduler, self.lanes
        common = self._in_common(elder, sequence)
        if not common:
            return False
        if not (self._has_room(sequence, sequence.known - common) or (sequence.request.beams and self.alone(elder))):
            scheduler.refused_at = scheduler.changes
            return False
        whole = scheduler.arrival(sequence)
        child = replace(whole, length=common, ids=None if whole.ids is None else whole.ids[:common])
        if scheduler.metered.tells:
            scheduler.teller.tell(elder.lane)
        grant = scheduler.metered.fork(elder.id, child)
        if grant is None:
            scheduler.refused_at = scheduler.changes
            return False
        scheduler.waiting.popleft()
        lane = scheduler.start(sequence, grant)
        lanes.asks[lane] = lanes.asks[elder.lane] = True
        scheduler.tally.forks += 1
        return True

    def _in_common(self, elder: Sequence, sequence: Sequence) -> int:
        """Tokens that both begin with and the elder has stored; 0 while its prompt is not."""
        stored, prompt = int(self.lanes.stored[elder.lane]), sequence.request.prompt_len
        if stored < prompt:
            return 0
        if self.lanes.ids is None:
            return prompt if not sequence.request.beams else min(stored, sequence.known - 1)
        return min(stored, shared_tokens(self.lanes.tokens(elder.lane), sequence.tokens()), sequence.known - 1)

    def _has_room(self, sequence: Sequence, own: int) -> bool:
        """Whether it may go on afterwards: its own tokens, and a block for it and for its elder to write into.

        A sample that gave way comes back where there is a block for everybody: as the newest it would give way at once.
        """
        back = sequence.preemptions and not sequence.request.beams
        writers = len(self.lanes) + 1 if back else 2
        return self.scheduler.metered.usage().largest >= own + writers * (self.scheduler.strategy.block_size or 1)

    # --- a launch

    def complete(self, launch: Launch) -> Launch:
        """With the rows that families want sampled beside the usual ones."""
        if not self.families and self.scheduler.speculation is None:
            return launch
        lanes, lane_B = self.lanes, launch.lane_B
        brood_B = np.where(launch.samples_B, lanes.brood[lane_B], 0)
        draft_B = np.where(launch.samples_B, launch.stop_B - lanes.known[lane_B], 0)
        also = self._also(launch, brood_B, draft_B) if brood_B.any() or draft_B.any() else None
        beams_M = lanes.beams[lane_B][np.flatnonzero(launch.samples_B) if also is None else also.of_M]
        choices = Choices(np.flatnonzero(beams_M), 2 * int(beams_M.max())) if beams_M.any() else None
        return replace(launch, also=also, choices=choices)

    def _also(self, launch: Launch, brood_B: NDArray[np.int64], draft_B: NDArray[np.int64]) -> Also:
        """Each sampled row as often as samples begin with it; of a sequence with drafts the rows that verify them."""
        times_B = np.where(launch.samples_B, 1 + brood_B + draft_B, 0)
        of_M = np.repeat(np.arange(len(times_B)), times_B)
        nth_M = np.arange(len(of_M)) - (np.cumsum(times_B) - times_B)[of_M]
        last_B = np.cumsum(launch.stop_B - launch.start_B) - 1
        row_M = (last_B - draft_B)[of_M] + np.where(draft_B[of_M] > 0, nth_M, 0)
        id_M = self.lanes.id[launch.lane_B[of_M]] + np.where(brood_B[of_M] > 0, nth_M << BRANCH_BITS, 0)
        return Also(row_M, of_M, id_M)

    def sort_out(
        self, launch: Launch, token_M: NDArray[np.int32], now: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """(lanes [N], tokens [N]) that go the usual way; the others are dealt with."""
        lane_M = launch.lane_B[launch.sampled()]
        if launch.also is None and launch.choices is None:
            return lane_M, token_M
        usual_M = self.lanes.beams[lane_M] == 0
        if self.scheduler.speculation is not None:
            usual_M &= self.scheduler.speculation.settle(self.scheduler, launch, token_M)
        if launch.also is not None:
            own_M = launch.also.id_M == self.lanes.id[lane_M]
            self._spawn(lane_M[~own_M].tolist(), token_M[~own_M].tolist(), now)
            usual_M &= own_M
        if launch.choices is not None:
            self.search.found(launch.choices, lane_M, now)
        return lane_M[usual_M], token_M[usual_M]

    def _spawn(self, lanes: list[int], tokens: list[int], now: float) -> None:
        """Samples whose first token was drawn beside their elder's; they wait to fork from it."""
        made = list[Sequence]()
        for lane, token in zip(lanes, tokens, strict=True):
            family = self.lanes.at(lane).family
            assert family is not None
            child = family.make(family.request.prompt_len + 1, np.array([token], np.int32))
            child.first_token_s = child.last_token_s = now
            self.lanes.brood[lane] = 0
            if child.known >= self.lanes.end[lane] or (self.lanes.final[lane] < 0 and token in self.search.rules.eos):
                child.finish_s = now
                self.scheduler.departures.end(child, "finished", "")
            else:
                made.append(child)
        self.scheduler.put_first(made)


def _width(family: Family) -> int:
    """Sequences that a request may have on the device at once, from now on."""
    request = family.request
    return request.beams or len(family.live) + request.n - family.branches
