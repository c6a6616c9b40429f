"""The loop: arrivals -> plan -> moves -> launch -> tokens -> record. The same for every strategy and executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.arrivals import Arrivals
from kvlab.engine.clock import Clock
from kvlab.engine.launch import Launch
from kvlab.engine.scheduler import Scheduler
from kvlab.record.recorder import Recorder
from kvlab.request import Request
from kvlab.strategy import Move


class Executor(Protocol):
    """What carries a launch out."""

    def run(self, moves: list[Move], launch: Launch) -> NDArray[np.int32]:
        """Carry out the moves in order, compute the launch, return the tokens of those that sample [N].

        When it returns the moves beside the launch are done too.
        """
        ...


ExecutorT = TypeVar("ExecutorT", bound=Executor)


class Engine(Generic[ExecutorT]):
    """Serves the requests, in order of arrival, until every one has finished, failed or been refused."""

    def __init__(
        self,
        requests: Iterable[Request],
        scheduler: Scheduler,
        executor: ExecutorT,
        clock: Clock,
        recorder: Recorder,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.pending = Arrivals(requests)
        self.scheduler, self.executor, self.clock = scheduler, executor, clock
        self.recorder, self.progress = recorder, progress

    def run(self) -> None:
        while self.step():
            pass
        self.recorder.end()

    def step(self) -> bool:
        """One launch, or where nobody runs or waits one wait for the next arrival; False when nothing is left to do."""
        self._take_arrivals()
        launch = self.scheduler.plan()
        if launch is not None:
            self._launch(launch)
        elif self.pending and not self.scheduler.busy:
            self._wait()
        return self.scheduler.busy or bool(self.pending)

    def _take_arrivals(self) -> None:
        now = self.clock.now()
        while self.pending.next_s <= now:
            self.scheduler.enqueue(self.pending.take())

    def _launch(self, launch: Launch) -> None:
        token_N = self.executor.run(self.scheduler.take_moves(), launch)
        self.clock.tick()
        now = self.clock.now()
        self.recorder.step(self.scheduler, launch, now)
        tally = self.scheduler.tally
        ended = tally.num_ended
        self.scheduler.done(launch, token_N, now)
        if self.progress is not None and tally.num_ended > ended:
            self.progress(tally.num_ended)

    def _wait(self) -> None:
        self.clock.wait_until(self.pending.next_s)
        self.recorder.idle(self.scheduler, self.clock.now())
