"""What the bookkeeping of a whole trace costs: requests come and go, a fixed number runs, every token is counted.

The scheduler and the strategy are the real ones, as for bench/bookkeeping.py, and there is no model. Prompts share
nothing, so that a cache publishes, evicts and finds nothing: what it costs where it does not help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import log
from time import thread_time_ns
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.bench.bookkeeping import Spread
from kvlab.engine.axes import Limit, Newest, PromptPlusOne
from kvlab.engine.lanes import Lanes
from kvlab.engine.scheduler import Scheduler
from kvlab.engine.settings import Settings
from kvlab.request import Request
from kvlab.strategy import Strategy

VOCAB = 32_000
PROMPT, OUTPUT, SIGMA, CAP, LEAST = 160, 140, 0.7, 512, 4  # tokens: mean of each lognormal, and its ends


class Lengths(NamedTuple):
    """Tokens of each request [N]."""

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]


class Told(NamedTuple):
    """One trace's steps, its tokens and what they cost: nanoseconds of CPU time, all together."""

    steps: int
    output_tokens: int
    most_tokens: int  # tokens' worth of memory that were in use after a step
    strategy_ns: int
    step_ns: int  # the strategy, and planning, the launch and taking tokens


@dataclass(frozen=True, slots=True)
class Total:
    """Several times the same trace: nanoseconds per output token."""

    steps: int
    output_tokens: int
    most_tokens: int
    strategy_ns: Spread
    step_ns: Spread

    def record(self) -> dict[str, Any]:
        return asdict(self) | {name: getattr(self, name)._asdict() for name in ("strategy_ns", "step_ns")}


def replay(make: Callable[[], Strategy], known: Lengths, repeats: int) -> Total:
    """`make` gives a new strategy, whose pool holds memory.max_seqs of the longest requests."""
    told = [tell(make(), known) for _ in range(repeats)]
    strategy = Spread.of([one.strategy_ns / one.output_tokens for one in told])
    return Total(*told[0][:3], strategy, Spread.of([one.step_ns / one.output_tokens for one in told]))


def lengths(requests: int, seed: int = 0) -> Lengths:
    """Lognormal, as many requests of one seed begin as fewer do not: numpy draws all prompts first."""
    rng = np.random.default_rng(seed)
    drawn = [rng.lognormal(log(mean) - SIGMA**2 / 2, SIGMA, requests) for mean in (PROMPT, OUTPUT)]
    return Lengths(*(np.clip(np.round(values), LEAST, CAP).astype(np.int64) for values in drawn))


def tell(strategy: Strategy, known: Lengths) -> Told:
    """All requests wait from the start; as many run as the strategy's memory says. Nobody may be preempted."""
    scheduler, rng = _waiting(strategy, known), np.random.default_rng(2)
    metered, lanes = scheduler.metered, scheduler.lanes
    metered.clock = thread_time_ns
    steps = tokens = most = step_ns = 0
    while scheduler.busy:
        token_N = rng.integers(0, VOCAB, strategy.memory.max_seqs, np.int32)
        begin = thread_time_ns()
        launch = scheduler.plan()
        assert launch is not None
        scheduler.done(launch, token_N[: len(launch.lane_B)], 0.0)
        step_ns += thread_time_ns() - begin
        scheduler.take_moves()
        steps, tokens = steps + 1, tokens + len(launch.lane_B)
        most = max(most, strategy.usage().held)
    assert not scheduler.tally.preemptions
    assert not len(lanes)
    assert tokens == known.output.sum()
    return Told(steps, tokens, most // strategy.memory.token_bytes, metered.ns, step_ns)


def _waiting(strategy: Strategy, known: Lengths) -> Scheduler:
    """A scheduler before its first step, every request in its queue."""
    memory, rng = strategy.memory, np.random.default_rng(1)
    lanes = Lanes(memory.max_seqs, memory.max_len)
    scheduler = Scheduler(
        strategy,
        lanes,
        admission=PromptPlusOne(),
        victim=Newest(),
        forecast=Limit(),
        settings=Settings(wait_for_prefix=False),  # as vLLM: nobody waits for another's prompt
        on_end=lambda sequence: None,
    )
    for id, (prompt, output) in enumerate(zip(*(column.tolist() for column in known), strict=True)):
        ids = rng.integers(0, VOCAB, prompt, np.int32)
        scheduler.enqueue(Request(id, prompt, output, prompt + output, 0.0, ids))
    return scheduler
