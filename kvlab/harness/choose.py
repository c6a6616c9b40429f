"""Which runs a table is made of, and what it refuses to put side by side unless told."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kvlab.engine.capacity import size_text
from kvlab.errors import UsageError
from kvlab.harness.results import Run

TIMED = re.compile(r"tokens_per_s|.*_s(\..*)?|.*_us_per_step")  # metrics that are times, or made of them
DATED = "started"  # a text that would look like one


def is_timed(metric: str) -> bool:
    return metric != DATED and TIMED.fullmatch(metric) is not None


def where(runs: list[Run], conditions: Iterable[str]) -> list[Run]:
    """The runs of which every KEY=VALUE[,VALUE] holds. Raises UsageError where none is left, or nobody has the key."""
    for condition in conditions:
        key, equals, values = condition.partition("=")
        found = {_forms(key, run)[-1] for run in runs if key in run.config or key in run.values}
        if not equals or not found:
            keys = sorted({key for run in runs for key in run.config})
            raise UsageError(f"--where {condition}: write KEY=VALUE, with a key of these runs: {', '.join(keys)}")
        runs = [run for run in runs if not set(_forms(key, run)).isdisjoint(values.split(","))]
        if not runs:
            raise UsageError(f"--where {condition}: no run is left; {key} is {', '.join(sorted(found))}")
    return runs


def refuse_mixed(runs: Iterable[Run], timed: bool) -> None:
    """Raise UsageError where seconds of a cost model meet measured ones, or sound timings meet flagged ones.

    timed: whether the table shows times at all; what memory was used for does not need sound timings.
    """
    ok = [run for run in runs if run.status == "ok"]
    simulated = [run for run in ok if run.values.get("simulated")]
    if simulated and len(simulated) < len(ok):
        raise UsageError(
            f"{len(simulated)} of {len(ok)} runs are simulated, the others measured: choose with "
            "--where executor=simulated or executor=real, or give --mix"
        )
    flagged = [run for run in ok if run.values.get("timing_valid") is False]
    if timed and flagged and len(flagged) < len(ok):
        raise UsageError(
            f"{len(flagged)} of {len(ok)} runs have timings that are not to be used (timing_valid is false, "
            f"{flagged[0].path.name} for one): choose with --where timing_valid=true, or give --mix"
        )


def _forms(key: str, run: Run) -> list[str]:
    """A value as it may be typed; the last one is the most readable."""
    value: Any = run.config[key] if key in run.config else run.values.get(key)
    if value is None or isinstance(value, bool):
        return ["null" if value is None else str(value).lower()]
    return [str(value), size_text(value).replace(" ", "")] if key.endswith("_bytes") else [str(value)]
