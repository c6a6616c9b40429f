"""Which runs can be laid on one time axis, and their series as shares of the pool."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.harness.groups import Row
from kvlab.harness.results import Run

PARTS = ("token_state", "reservation", "internal", "cached", "external")  # of the pool; columns of steps.csv
SERIES = {"time_s", "dt_s", "held", *PARTS}
MAX_PANELS = 8  # of one figure over time; more rows than that are unreadable


def first_setting(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """The rows a figure over time can compare: those that differ only in how memory is managed.

    Of several settings the one with the most rows, of those one in which most of them kept requests waiting, and of
    those the first; the notes name what that leaves out.
    """
    timed = [row for row in rows if any(has_series(run) for run in row.runs)]
    if not timed:
        return [], ["No figure over time: no run has a whole steps.csv."]
    settings: dict[str, list[Row]] = {}
    for row in timed:
        settings.setdefault(row.setting, []).append(row)
    name = max(settings, key=lambda setting: (len(settings[setting]), sum(map(_kept_waiting, settings[setting]))))
    notes = []
    if len(settings) > 1:
        notes.append(f"The figures over time show {name}, one of {len(settings)} settings.")
    if len(settings[name]) > MAX_PANELS:
        notes.append(f"The figures over time show the first {MAX_PANELS} of {len(settings[name])} rows.")
    return settings[name][:MAX_PANELS], notes


def _kept_waiting(row: Row) -> bool:
    return all(run.values.get("saturated_steps") != 0 for run in row.runs)


def one_seed(rows: list[Row]) -> list[Run]:
    """A run for each row, all of one seed, so that they served the same requests.

    Of the seeds that all rows have, the one at which the first row's throughput is the median, or just below.
    """
    series = [[run for run in row.runs if has_series(run)] for row in rows]
    common = set.intersection(*({run.seed for run in runs} for runs in series))
    first = sorted((run for run in series[0] if run.seed in common), key=_rate)
    if not first:
        return [runs[0] for runs in series]
    seed = first[(len(first) - 1) // 2].seed
    return [next(run for run in runs if run.seed == seed) for runs in series]


def has_series(run: Run) -> bool:
    return bool(run.steps.get("time_s")) and run.steps.keys() >= SERIES


class Series(NamedTuple):
    """Edges of the steps [steps + 1], and shares of the pool [steps]: `held`, and the parts with external split."""

    edges: NDArray[np.float64]
    shares: dict[str, NDArray[np.float64]]

    @property
    def done(self) -> float:
        return float(self.edges[-1])


def over_time(run: Run) -> Series:
    """The parts of a run's pool; of what is external, what is neither held nor cached is free, else rounded up."""
    columns = {name: np.array(values) for name, values in run.steps.items()}
    pool = np.sum([columns[part] for part in PARTS], axis=0)
    free = np.clip(pool - columns["held"] - columns["cached"], 0, columns["external"])
    columns |= {"free": free, "rounded": columns["external"] - free}
    edges = np.concatenate(([columns["time_s"][0] - columns["dt_s"][0]], columns["time_s"]))
    return Series(edges, {name: columns[name] / pool for name in (*PARTS, "free", "rounded", "held")})


def axis_end(ends: list[float]) -> float:
    """Where a common time axis ends: at the last, or a little behind the others if that leaves them no room."""
    *others, longest = sorted(ends)
    return 1.2 * others[-1] if others and longest > 2 * others[-1] else longest


def until(series: Series, end: float) -> Series:
    """The part of the series before `end`."""
    count = max(1, int(np.count_nonzero(series.edges[:-1] < end)))
    edges = np.minimum(series.edges[: count + 1], end)
    return Series(edges, {name: values[:count] for name, values in series.shares.items()})


def _rate(run: Run) -> float:
    return float(run.values.get("tokens_per_s") or 0)
