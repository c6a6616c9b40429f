"""Beam search on the device: a search's beams go on once all have come as far, and heirs take their places.

Which candidates go on is decided in kvlab.engine.beams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.beams import Rules, Survivor, is_over, keep_best, survivors
from kvlab.engine.launch import Choices
from kvlab.engine.sequence import Candidates, Family, Hypothesis, Sequence

if TYPE_CHECKING:
    from kvlab.engine.scheduler import Scheduler


class Search:
    """The part of a scheduler that looks after beams."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.lanes = scheduler, scheduler.lanes
        self.rules = Rules(scheduler.settings.length_penalty, tuple(scheduler.eos.tolist()))

    def found(self, choices: Choices, lane_M: NDArray[np.int64], now: float) -> None:
        """A launch brought candidates for beams; lanes [M] of its sampled rows. A search waits for all of its beams."""
        for row, candidates in zip(choices.row_R.tolist(), choices.found, strict=True):
            beam = self.lanes.at(int(lane_M[row]))
            assert beam.family is not None
            width = 2 * beam.family.request.beams  # another search of the launch may be wider
            beam.family.ready[beam.id] = Candidates(candidates.token_C[:width], candidates.logprob_C[:width])
            if len(beam.family.ready) == len(beam.family.live):
                self._choose(beam.family, now)

    def _choose(self, family: Family, now: float) -> None:
        """Every beam of the search has its candidates: the best go on."""
        lanes, prompt, width = self.lanes, family.request.prompt_len, family.request.beams
        beams = [family.live[id] for id in sorted(family.ready)]
        known = int(lanes.known[beams[0].lane])
        eos = self.rules.eos if family.request.final is None else ()
        going, ended = survivors(beams, [family.ready[beam.id] for beam in beams], width, eos)
        family.ready.clear()
        length = known + 1 - prompt
        keep_best(family, [self._hypothesis(one, prompt) for one in ended], self.rules)
        for beam in beams:
            beam.first_token_s = now if beam.first_token_s is None else beam.first_token_s
        last_s = float(lanes.last_s[beams[0].lane])
        if last_s >= 0:
            self.scheduler.tally.gaps.add(np.full(len(going), now - last_s))
        lanes.last_s[[beam.lane for beam in beams]] = now
        if known + 1 >= int(lanes.end[beams[0].lane]) or is_over(family, going, length, self.rules):
            keep_best(family, [self._hypothesis(one, prompt) for one in going], self.rules)
            self._over(family, beams, now)
        else:
            self._go_on(family, beams, going)

    def _hypothesis(self, one: Survivor, prompt: int) -> Hypothesis:
        said = self._said(one.parent, prompt)
        return Hypothesis(np.append(said, np.int32(one.token)).astype(np.int32), one.score)

    def _said(self, beam: Sequence, prompt: int) -> NDArray[np.int32]:
        if self.lanes.ids is None:
            return np.zeros(int(self.lanes.known[beam.lane]) - prompt, np.int32)
        return self.lanes.tokens(beam.lane)[prompt:].copy()

    def _go_on(self, family: Family, beams: list[Sequence], going: list[Survivor]) -> None:
        """The first heir of a beam takes its place, the others fork from it; beams without heirs leave."""
        scheduler, lanes = self.scheduler, self.lanes
        heirs: dict[int, list[Survivor]] = {beam.id: [] for beam in beams}
        for one in going:
            heirs[one.parent.id].append(one)
        children = list[Sequence]()
        for beam in beams:
            if not heirs[beam.id]:
                scheduler.departures.take_off(beam.lane)
                del family.live[beam.id]
                continue
            first, *others = heirs[beam.id]
            children += self._children(family, beam, others)
            if lanes.ids is not None:
                lanes.ids[beam.lane, lanes.known[beam.lane]] = first.token
            lanes.known[beam.lane] += 1
            beam.score = first.score
        scheduler.put_first(children)

    def _children(self, family: Family, beam: Sequence, heirs: list[Survivor]) -> list[Sequence]:
        """A sequence for each heir that does not take the beam's place."""
        children, said = list[Sequence](), self._said(beam, family.request.prompt_len)
        for one in heirs:
            child = family.make(int(self.lanes.known[beam.lane]) + 1, np.append(said, np.int32(one.token)))
            child.last_token_s = float(self.lanes.last_s[beam.lane])
            child.score, child.first_token_s, child.preemptions = one.score, beam.first_token_s, beam.preemptions
            children.append(child)
        return children

    def _over(self, family: Family, beams: list[Sequence], now: float) -> None:
        """The search is over: its best hypotheses are the request's sequences, the best one the first."""
        scheduler, first = self.scheduler, beams[0]
        most = max(beam.preemptions for beam in beams)
        for beam in beams:
            scheduler.departures.take_off(beam.lane)
        family.live.clear()
        family.branches = 0
        prompt = family.request.prompt_len
        for best in family.done:
            one = family.make(prompt + len(best.output), best.output)
            one.score, one.preemptions, one.found = best.score, most, first.found
            one.first_token_s, one.finish_s = first.first_token_s, now
        for one in list(family.live.values()):
            scheduler.departures.end(one, "finished", "")
