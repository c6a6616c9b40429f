"""The engine with a cost model in place of a model: the same decisions, on a clock that only counts.

Launches in which nobody comes, leaves, asks or is admitted are taken in one go, as far as they follow each other;
what they cost and what is recorded of them is what it would be one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.arrivals import Came
from kvlab.engine.draws import even, mixed
from kvlab.engine.engine import Engine
from kvlab.engine.lanes import Lanes
from kvlab.engine.launch import Launch
from kvlab.engine.scheduler import Scheduler
from kvlab.engine.sequence import Tokens
from kvlab.engine.settings import LONGEST_PREFIX
from kvlab.record.recorder import Recorder
from kvlab.request import Request
from kvlab.strategy import Move

LONGEST = 1 << 14  # launches taken in one go, at most: their rows are made at once


class Cost(Protocol):
    """Seconds; kvlab.cost.model says what they are made of."""

    def launch(self, new_B: NDArray[np.int64], stop_B: NDArray[np.int64], samples: int) -> float: ...

    def decode(self, seqs: int, tokens: int, steps: int) -> NDArray[np.float64]: ...

    def moves(self, moves: list[Move]) -> float: ...

    def beside(self, moves: list[Move], launch_s: float) -> float: ...


class SimulatedClock:
    """Goes on when somebody says by how much."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def tick(self) -> None:
        pass

    def wait_until(self, at: float) -> None:
        self.seconds = max(self.seconds, at)


def hashed(vocab: int) -> Tokens:
    """Token ids that nobody else has at that place, as good as: a mix of request and position."""

    def tokens(id_N: NDArray[np.int64], position_N: NDArray[np.int64]) -> NDArray[np.int32]:
        return (mixed(id_N, position_N) % np.uint64(vocab)).astype(np.int32)

    return tokens


def candidates(id_R: NDArray[np.int64], position_R: NDArray[np.int64], count: int) -> tuple[
    NDArray[np.int64], NDArray[np.float64]
]:  # fmt: skip
    """What might follow beams, by chance: (tokens [R, count], log-probabilities [R, count], the largest first).

    A log-probability is that of an even draw from 0 to 1; no model's.
    """
    place_RC = position_R[:, None] * count + np.arange(count)
    mixed_RC = mixed(np.broadcast_to(id_R[:, None], place_RC.shape), place_RC)
    logprob_RC = np.log(even(mixed_RC))
    return np.broadcast_to(np.arange(count), place_RC.shape), -np.sort(-logprob_RC, axis=1)


class SimulatedTime:
    """What launches would take; puts the clock forward by it."""

    def __init__(self, cost: Cost, clock: SimulatedClock) -> None:
        self.cost, self.clock = cost, clock

    def pass_by(self, moves: list[Move], launch: Launch, samples: int) -> None:
        """Put the clock forward by a launch that samples so many rows."""
        launch_s = self.cost.launch(launch.stop_B - launch.start_B, launch.stop_B, samples)
        self.clock.seconds += launch_s + self._moved(moves, launch, launch_s)

    def decode(self, moves: list[Move], launch: Launch, steps: int) -> NDArray[np.float64]:
        """The moments at which that launch and those like it behind it begin [steps], and the last one's end.

        The moves are carried out before and beside the first of them.
        """
        second_K = self.cost.decode(len(launch.lane_B), int(launch.stop_B.sum()), steps)
        if moves or launch.beside:
            second_K[0] += self._moved(moves, launch, float(second_K[0]))
        begin_K = np.empty(steps + 1)
        begin_K[0], begin_K[1:] = self.clock.seconds, second_K
        return begin_K.cumsum()

    def _moved(self, moves: list[Move], launch: Launch, launch_s: float) -> float:
        """Seconds by which moves make a launch longer."""
        seconds = self.cost.moves(moves) if moves else 0.0
        return seconds + self.cost.beside(launch.beside, launch_s) if launch.beside else seconds


class SimulatedExecutor(SimulatedTime):
    """Computes nothing: says tokens that `tokens` makes up."""

    def __init__(self, cost: Cost, lanes: Lanes, clock: SimulatedClock, tokens: Tokens) -> None:
        super().__init__(cost, clock)
        self.lanes, self.tokens = lanes, tokens

    def run(self, moves: list[Move], launch: Launch) -> NDArray[np.int32]:
        of_M = launch.sampled()
        self.pass_by(moves, launch, len(of_M))
        id_M = self.lanes.id[launch.lane_B[of_M]] if launch.also is None else launch.also.id_M
        if launch.choices is not None:
            row_R = launch.choices.row_R
            launch.choices.take(*candidates(id_M[row_R], launch.positions()[row_R], launch.choices.count))
        return np.zeros(len(of_M), np.int32) if launch.ids_T is None else self.tokens(id_M, launch.positions())


class SimulatedEngine(Engine[SimulatedExecutor]):
    """`times`: of all arrivals. Of requests that have come no more than `window` become sequences before their turn."""

    clock: SimulatedClock

    def __init__(
        self,
        requests: Iterable[Request],
        times: Iterable[float],
        scheduler: Scheduler,
        executor: SimulatedExecutor,
        recorder: Recorder,
        progress: Callable[[int], None] | None = None,
        window: int = 256,
    ) -> None:
        super().__init__(requests, scheduler, executor, executor.clock, recorder, progress)
        self.ranked = scheduler.settings.queue == LONGEST_PREFIX  # or requests differ in priority
        self.came, self.window = (
            Came(times),
            max(window, scheduler.strategy.memory.max_seqs),
        )  # as many as may start at once

    def _take_arrivals(self) -> None:
        now, waiting = self.clock.now(), self.scheduler.waiting
        while self.pending.next_s <= now and len(waiting) < self.window:
            self.scheduler.enqueue(self.pending.take())
        self.scheduler.backlog = self.came.by(now) - self.pending.taken

    def _launch(self, launch: Launch) -> None:
        """That launch; or where it only decodes, all that are like it, as many as begin before somebody comes."""
        steps = min(self.scheduler.quiet.launches(launch), LONGEST)
        if steps < 1:
            super()._launch(launch)
            return
        scheduler = self.scheduler
        begin_K = self.executor.decode(scheduler.take_moves(), launch, steps)
        self.ranked = self.ranked or self.pending.next_priority != 0
        if steps > 1 and (self.ranked or not scheduler.waiting):  # whoever is urgent goes before those that wait
            steps = max(1, int(np.searchsorted(begin_K[:-1], self.pending.next_s)))
        queued_K = self.came.by_each(begin_K[:steps]) - self.pending.taken + len(scheduler.waiting)
        self.recorder.stretch(scheduler, launch, begin_K[1 : steps + 1], queued_K)
        scheduler.quiet.advance(begin_K[1 : steps + 1], self.executor.tokens)
        self.clock.seconds = float(begin_K[steps])
