"""Which runs can be laid on one time axis, and their series as shares of the pool."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlab.harness.groups import Row
from kvlab.harness.results import Run

PARTS = ("token_state", "reservation", "internal", "cached", "external")  # of the pool; columns of steps.csv
SERIES = {"time_s", "dt_s", "held", *PARTS}
MAX_PANELS = 8  # of one figure over time; more rows than that are unreadable


def first_setting(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """The rows a figure over time can compare: those that differ only in how memory is managed.

    Of several settings the one with the most rows, the first of them; the notes name what that leaves out.
    """
    timed = [row for row in rows if any(has_series(run) for run in row.runs)]
    if not timed:
        return [], ["No figure over time: no run has a whole steps.csv."]
    settings: dict[str, list[Row]] = {}
    for row in timed:
        settings.setdefault(row.setting, []).append(row)
    name = max(settings, key=lambda setting: len(settings[setting]))
    notes = []
    if len(settings) > 1:
        notes.append(f"The figures over time show {name}, one of {len(settings)} settings.")
    if len(settings[name]) > MAX_PANELS:
        notes.append(f"The figures over time show the first {MAX_PANELS} of {len(settings[name])} rows.")
    return settings[name][:MAX_PANELS], notes


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


def over_time(run: Run) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Edges of the steps in seconds [steps + 1], and shares of the pool [steps]: the parts, and what is held."""
    columns = {name: np.array(values) for name, values in run.steps.items()}
    parts = {part: columns[part] for part in PARTS}
    pool = np.sum(list(parts.values()), axis=0)
    edges = np.concatenate(([columns["time_s"][0] - columns["dt_s"][0]], columns["time_s"]))
    return edges, {part: values / pool for part, values in (parts | {"held": columns["held"]}).items()}


def _rate(run: Run) -> float:
    return float(run.values.get("tokens_per_s") or 0)
