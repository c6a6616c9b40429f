"""Every run a row: what pandas.read_csv takes. Axes first, then metrics; one file for any number of sweeps.

A column's name is the key in docs/metrics.md or of the configuration, which names the unit. An empty cell: not
reported, or a knob that the run's strategy lacks.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
from typing import Any

from kvlab.harness.results import Run

FIRST = ("directory", "status", "reason")  # where it lies, and how it ended
LEFT_OUT = ("machine.", "versions.", "device_info.")  # what ran, not what came out: result.json has it
NOT_AXES = ("hydra.", "tracking")


def tidy(runs: list[Run]) -> list[dict[str, Any]]:
    """A flat dict for each run, all with the same keys, in order: FIRST, axes that differ, other axes, metrics."""
    axes = _axes(runs)
    metrics = sorted({key for run in runs for key in run.values if _is_metric(key)} - set(axes) - set(FIRST))
    return [
        {"directory": str(run.path), "status": run.status, "reason": run.reason}
        | {key: _cell(key, run.config.get(key)) for key in axes}
        | {key: _cell(key, run.values.get(key)) for key in metrics}
        for run in runs
    ]


def to_csv(runs: list[Run]) -> str:
    rows, out = tidy(runs), io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else FIRST, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _axes(runs: list[Run]) -> list[str]:
    """Configuration keys; strategy and seed lead, then those with more than one value."""
    keys = {key for run in runs for key in run.config if not key.startswith(NOT_AXES)}
    values = {key: {repr(run.config.get(key)) for run in runs} for key in keys}
    return sorted(keys, key=lambda key: (key not in ("strategy", "seed"), len(values[key]) < 2, key))


def _is_metric(key: str) -> bool:
    return not key.startswith(LEFT_OUT)


def _cell(key: str, value: Any) -> Any:
    if key == "overrides" and isinstance(value, list):
        return shlex.join(map(str, value))
    return json.dumps(value) if isinstance(value, list) else value
