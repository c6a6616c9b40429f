"""The simulated engine over PlainScheduler: requests come in batches, and are columns from there on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.arrivals import Came
from kvlab.engine.columns import Block, of_requests, seconds
from kvlab.engine.launch import Launch
from kvlab.engine.plain import PlainScheduler
from kvlab.engine.simulated import LONGEST, SimulatedTime
from kvlab.record.recorder import Recorder
from kvlab.workload.stream import Batch


class Pending:
    """Requests in order of arrival, drawn no earlier than somebody looks at them."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._rest, self.taken, self.next_s = batches, 0, inf
        self._block: Block = np.empty((0, 0), np.int64)
        self._arrival_s, self._at = np.empty(0), 0
        self._draw()

    def __bool__(self) -> bool:
        return self.next_s < inf

    def take(self, now: float, most: int) -> Block:
        """Of those that have come by now at most so many; fewer where not all are drawn yet."""
        stop = int(np.searchsorted(self._arrival_s[self._at : self._at + most], now, side="right")) + self._at
        block = self._block[:, self._at : stop]
        self.taken += stop - self._at
        self._at = stop
        if stop < len(self._arrival_s):
            self.next_s = float(self._arrival_s[stop])
        else:
            self._draw()
        return block

    def _draw(self) -> None:
        batch = next((batch for batch in self._rest if len(batch.id)), None)
        if batch is None:
            self.next_s = inf
            return
        self._block, self._at = of_requests(*batch), 0
        self._arrival_s = seconds(self._block, "arrival_s")
        self.next_s = float(self._arrival_s[0])


class PlainEngine:
    """As SimulatedEngine."""

    def __init__(
        self,
        batches: Iterator[Batch],
        times: Iterable[float],
        scheduler: PlainScheduler,
        time: SimulatedTime,
        recorder: Recorder,
        progress: Callable[[int], None] | None = None,
        window: int = 256,
    ) -> None:
        self.pending, self.came = Pending(batches), Came(times)
        self.scheduler, self.time, self.clock = scheduler, time, time.clock
        self.recorder, self.progress = recorder, progress
        self.window = max(window, scheduler.strategy.memory.max_seqs)

    def run(self) -> None:
        while self.step():
            pass
        self.recorder.end()

    def step(self) -> bool:
        """As Engine.step, but that launches of which one is like the other are taken in one go."""
        self._take_arrivals()
        launch = self.scheduler.plan()
        if launch is not None:
            self._launch(launch)
        elif self.pending and not self.scheduler.busy:
            self.clock.wait_until(self.pending.next_s)
            self.recorder.idle(self.scheduler, self.clock.now())
        return self.scheduler.busy or bool(self.pending)

    def _take_arrivals(self) -> None:
        now, scheduler = self.clock.now(), self.scheduler
        while self.pending.next_s <= now and (most := self.window - scheduler.num_waiting) > 0:
            scheduler.enqueue(self.pending.take(now, most))
        scheduler.backlog = self.came.by(now) - self.pending.taken if self.pending else 0

    def _launch(self, launch: Launch) -> None:
        tally = self.scheduler.tally
        ended, steps = tally.num_ended, min(self.scheduler.alike(), LONGEST)
        if steps < 1:
            self._one(launch)
        else:
            self._many(launch, steps)
        if self.progress is not None and tally.num_ended > ended:
            self.progress(tally.num_ended)

    def _one(self, launch: Launch) -> None:
        self.time.pass_by(self.scheduler.take_moves(), launch, int(launch.samples_B.sum()))
        now = self.clock.now()
        self.recorder.step(self.scheduler, launch, now)
        self.scheduler.done(launch, now)

    def _many(self, launch: Launch, steps: int) -> None:
        """That launch and those like it, as many as begin before somebody comes."""
        scheduler = self.scheduler
        begin_K = self.time.decode(scheduler.take_moves(), launch, steps)
        if steps > 1 and self.pending.next_s <= begin_K[steps - 1] and scheduler.num_waiting < self.window:
            steps = self._before(begin_K[:steps])
        queued_K = np.full(steps, scheduler.num_waiting)
        if self.pending:
            queued_K += self.came.by_each(begin_K[:steps]) - self.pending.taken
        self.recorder.stretch(scheduler, launch, begin_K[1 : steps + 1], queued_K)
        self.clock.seconds = float(begin_K[steps])
        scheduler.advance(begin_K[1 : steps + 1])

    def _before(self, begin_K: NDArray[np.float64]) -> int:
        """Somebody comes before the last of these begins: how many are taken in one go.

        Where others wait before him he changes nothing, but in a launch at whose end somebody is done it is to be
        known whether he is refused.
        """
        if not self.scheduler.num_waiting:
            return max(1, int(np.searchsorted(begin_K, self.pending.next_s)))
        return len(begin_K) - (self.scheduler.left() == len(begin_K))
