"""What a decode step's bookkeeping costs: the real scheduler and strategy, no model, everybody running.

Nanoseconds of CPU time, which other programs lengthen less than the wall's, per running sequence and step. A sequence
is asked for only when its room is used up; what asking every sequence in every step would cost instead is measured
beside it, and so is a step in which nobody's room is used up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import thread_time_ns
from typing import Any, NamedTuple

import numpy as np

from kvlab.engine.axes import Limit, Newest, PromptPlusOne
from kvlab.engine.lanes import Lanes
from kvlab.engine.launch import Launch
from kvlab.engine.scheduler import Scheduler
from kvlab.engine.settings import Settings
from kvlab.request import Request
from kvlab.strategy import Strategy, ceil_div

VOCAB = 32_000
WARM_UP = 4  # steps


class Spread(NamedTuple):
    """Over the repeats: nanoseconds per sequence and step, or per output token."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: list[float]) -> Spread:
        return Spread(median(values), min(values), max(values))


@dataclass(frozen=True)
class Cost:
    """asked: share of sequences that ask in a step. strategy_ns: inside the strategy. step_ns: planning, the table that
    kernels read and taking the tokens, strategy included. every_step_ns: inside the strategy if all asked in every
    step. quiet_ns: inside the strategy in steps in which nobody asks; None if there are none.
    """

    asked: float
    strategy_ns: Spread
    step_ns: Spread
    every_step_ns: Spread
    quiet_ns: Spread | None

    def record(self) -> dict[str, Any]:
        spreads = {name: value for name, value in vars(self).items() if name != "asked"}
        return {"asked": self.asked} | {name: value and value._asdict() for name, value in spreads.items()}


class Step(NamedTuple):
    """Of one step: how many asked, and its nanoseconds, all sequences together."""

    asked: int
    strategy_ns: int
    step_ns: int


def measure(make: Callable[[], Strategy], steps: int, repeats: int) -> Cost:
    """`make` gives a new strategy over a pool that holds memory.max_seqs sequences of memory.max_len tokens."""
    uneven, even, always = [], [], []
    for _ in range(repeats):
        uneven.append(list(_decode(make(), steps)))
        even.append(list(_decode(make(), steps, even=True)))
        always.append(list(_decode(make(), steps, always=True)))
    seqs = make().memory.max_seqs
    quiet = [[step for step in run if not step.asked] for run in even]
    return Cost(
        sum(step.asked for step in uneven[0]) / steps / seqs,
        _spread([[step.strategy_ns / seqs for step in run] for run in uneven]),
        _spread([[step.step_ns / seqs for step in run] for run in uneven]),
        _spread([[step.strategy_ns / seqs for step in run] for run in always]),
        _spread([[step.strategy_ns / seqs for step in run] for run in quiet]) if all(quiet) else None,
    )


def _spread(runs: list[list[float]]) -> Spread:
    return Spread.of([sum(run) / len(run) for run in runs])


def _decode(strategy: Strategy, steps: int, even: bool = False, always: bool = False) -> Iterator[Step]:
    """Decode steps of a full house. even: all sequences are equally long. always: each asks in every step."""
    scheduler, rng = _full_house(strategy, steps, even), np.random.default_rng(0)
    lanes, metered = scheduler.lanes, scheduler.metered
    metered.clock = thread_time_ns
    for index in range(steps + WARM_UP):
        if always:
            lanes.room[lanes.order] = 0
        asked = int((lanes.known[lanes.order] > lanes.room[lanes.order]).sum())
        token_N = rng.integers(0, VOCAB, len(lanes), np.int32)
        before, begin = metered.ns, thread_time_ns()
        launch = scheduler.plan()
        assert launch is not None
        _view(strategy, launch)
        scheduler.done(launch, token_N, 0.0)
        step = Step(asked, metered.ns - before, thread_time_ns() - begin)
        scheduler.take_moves()
        if index >= WARM_UP:
            yield step
    assert not scheduler.tally.preemptions
    assert len(lanes) == strategy.memory.max_seqs


def _full_house(strategy: Strategy, steps: int, even: bool) -> Scheduler:
    """As many sequences as may run, their prompts stored, and enough to say for all steps."""
    memory, rng = strategy.memory, np.random.default_rng(1)
    lanes = Lanes(memory.max_seqs, memory.max_len)
    alone = Settings(wait_for_prefix=False)  # two prompts may begin with one token by chance
    scheduler = Scheduler(strategy, lanes, admission=PromptPlusOne(), victim=Newest(), forecast=Limit(), settings=alone)
    output = steps + WARM_UP + 2
    longest = memory.max_len - output
    for id in range(memory.max_seqs):
        length = longest if even else int(rng.integers(longest // 2, longest + 1))
        ids = rng.integers(0, VOCAB, length, np.int32)
        scheduler.enqueue(Request(id, length, output, memory.max_len, 0.0, ids))
    launch = scheduler.plan()
    assert launch is not None
    scheduler.take_moves()
    scheduler.done(launch, rng.integers(0, VOCAB, memory.max_seqs, np.int32), 0.0)
    return scheduler


def _view(strategy: Strategy, launch: Launch) -> None:
    """The rows of the table that a kernel reads, as the executor takes them."""
    block_size = strategy.block_size
    width = 1 if block_size is None else ceil_div(int(launch.stop_B.max()), block_size)
    strategy.table.data[launch.row_B, :width]
