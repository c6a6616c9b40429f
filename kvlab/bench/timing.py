"""Times of calls that take turns, so that what slows the machine down for a while slows all of them down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from statistics import median
from time import perf_counter, thread_time
from typing import Any, NamedTuple

Work = Callable[[], object]
Clock = Callable[[Work], float]  # seconds that the work took


class Spread(NamedTuple):
    """Seconds of one call, over the repeats."""

    median: float
    low: float
    high: float


def cpu_clock(work: Work) -> float:
    """CPU time of this thread, which other programs lengthen less than the wall's."""
    begin = thread_time()
    work()
    return thread_time() - begin


def wall_clock(work: Work) -> float:
    begin = perf_counter()
    work()
    return perf_counter() - begin


def cuda_clock(work: Work) -> float:
    """Between two events of the device, around all that the work launches."""
    import torch

    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def take_turns(
    passes: Sequence[tuple[Work, int]],
    clock: Clock,
    repeats: int,
    least_s: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Spread]:
    """Each pass is a function and how many calls it makes; one sample of it lasts least_s or longer.

    Every pass has run twice before it counts: what it compiles, tunes and touches first stays out.
    """
    times = []
    for work, _ in passes:
        work()
        times.append(ceil(least_s / max(clock(work), 1e-9)))
    samples: list[list[float]] = [[] for _ in passes]
    for repeat in range(repeats):
        for seconds, (work, calls), rounds in zip(samples, passes, times, strict=True):
            seconds.append(clock(partial(_again, work, rounds)) / (rounds * calls))
        progress(repeat + 1, repeats)
    return [Spread(median(seconds), min(seconds), max(seconds)) for seconds in samples]


def _again(work: Work, rounds: int) -> None:
    for _ in range(rounds):
        work()
