"""What a sweep will take, before it starts: from earlier results in its directory; what is not known is called so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from kvlab.harness import rundir
from kvlab.harness.here import BESIDE_THE_POOL, is_simulated, pool_of
from kvlab.harness.manifest import ended_below

if TYPE_CHECKING:
    from kvlab.harness.plan import Planned

UNKNOWN = "unknown"
ALIKE = ("executor", "strategy", "model", "workload")  # runs that agree in these take about as long


class Earlier(NamedTuple):
    """One finished run: its configuration, and what it took."""

    config: Mapping[str, Any]
    seconds: float | None
    bytes: int | None


def dry_run(runs: Sequence[Planned], directory: Path) -> list[str]:
    """A line for each run, in order: label, seconds, memory; and one for all of them."""
    earlier = _earlier(directory)
    seconds = [_seconds(run, earlier) for run in runs]
    memory = [_bytes(run, earlier) for run in runs]
    width = max((len(run.label) for run in runs), default=0)
    lines = [
        f"{run.label:{width}}  {_duration(time):>8}  {_size(most):>9}"
        for run, time, most in zip(runs, seconds, memory, strict=True)
    ]
    return [*lines, _sum(seconds, memory)]


def _sum(seconds: Sequence[float | None], memory: Sequence[int | None]) -> str:
    known = [time for time in seconds if time is not None]
    largest = max((most for most in memory if most is not None), default=None)
    missing = f" and what {len(seconds) - len(known)} of unknown time take" if len(known) < len(seconds) else ""
    time = f"{_duration(sum(known))}{missing}" if known else UNKNOWN
    return f"{len(seconds)} runs one after the other: {time}; memory of the largest: {_size(largest)}"


def _earlier(directory: Path) -> list[Earlier]:
    places = [place for place in ended_below(directory).values() if rundir.is_finished(place)]
    results = [result for place in places if (result := rundir.read_result(place))]
    return [
        Earlier(result["config"], result.get("wall_s"), result.get("process_peak_bytes"))
        for result in results
        if result["status"] == "ok" and isinstance(result.get("config"), Mapping)
    ]


def _seconds(run: Planned, earlier: Sequence[Earlier]) -> float | None:
    """The median of the runs that differ in the seed alone, else of those that are alike."""
    for known in (_same_but_seed(run, earlier), _alike(run, earlier)):
        if times := [item.seconds for item in known if item.seconds is not None]:
            return median(times)
    return None


def _bytes(run: Planned, earlier: Sequence[Earlier]) -> int | None:
    """The most that such a run had, else of a real one its pool and what is beside it."""
    if peaks := [item.bytes for item in _same_but_seed(run, earlier) if item.bytes is not None]:
        return max(peaks)
    return None if is_simulated(run) else pool_of(run) + BESIDE_THE_POOL


def _same_but_seed(run: Planned, earlier: Sequence[Earlier]) -> list[Earlier]:
    mine = {**rundir.plain(run.config), "seed": None}
    return [item for item in earlier if {**item.config, "seed": None} == mine]


def _alike(run: Planned, earlier: Sequence[Earlier]) -> list[Earlier]:
    mine = rundir.plain(run.config)
    return [item for item in earlier if all(item.config.get(name) == mine.get(name) for name in ALIKE)]


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{seconds / 3600:.1f} h"


def _size(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count / 2**30:.2f} GiB"
