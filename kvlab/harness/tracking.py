"""Finished runs to W&B, from their result files. The only file that knows wandb; the runs themselves do not.

One W&B run for each kvlab run: group is the sweep, name its label, config the resolved configuration, summary
the metrics, history the step series thinned to 500 rows. If logging fails the results are whole and the next
`--resume` logs what is missing; the sweep still ends with status 1, because what was asked for did not happen.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from kvlab.errors import UsageError
from kvlab.harness import rundir
from kvlab.harness.results import flatten, named

Mode = Literal["online", "offline", "disabled"]
MODES: dict[str, Mode] = {"online": "online", "offline": "offline", "dryrun": "offline", "disabled": "disabled"}
HISTORY_ROWS = 500
NOT_METRICS = ("config.", "overrides", "versions.", "machine.", "schema_version")


class Tracker:
    """Takes nothing."""

    wanted = False
    line = "tracking=none: nothing goes to W&B"

    def log(self, directory: Path) -> None:
        """Log the finished run in `directory`, unless that was done before."""

    def conclude(self) -> int:
        """1 if a run could not be logged, which is said in one line."""
        return 0


class Wandb(Tracker):
    """Takes runs one after the other; after the first failure none, so that no time is lost on a dead server."""

    wanted = True

    def __init__(self, tracking: Mapping[str, Any], directory: Path, group: str | None) -> None:
        self.tracking, self.directory, self.group = tracking, directory, group
        self.mode, why = mode_of(tracking.get("mode"), os.environ)
        self.line = f"W&B: {self.mode} ({why}); tracking=none turns it off"
        self.failure = ""
        self.missing = 0

    def log(self, directory: Path) -> None:
        if self.mode == "disabled" or (directory / rundir.TRACKING).exists():
            return
        if not self.failure:
            try:
                self._log(directory)
                return
            except Exception as error:
                self.failure = " ".join(f"{type(error).__name__}: {error}".split())
        self.missing += 1

    def conclude(self) -> int:
        if not self.missing:
            return 0
        print(f"W&B did not take {self.missing} runs ({self.failure}); their results are whole", file=sys.stderr)
        return 1

    def _log(self, directory: Path) -> None:
        result = rundir.read_result(directory)
        assert result
        run = self._begin(directory.name, result)
        for row in thinned(directory / rundir.STEPS):
            run.log(row)
        run.summary.update(metrics(result))
        run.finish(exit_code=0)
        rundir.write_json(directory / rundir.TRACKING, {"id": run.id, "mode": self.mode})

    def _begin(self, name: str, result: dict[str, Any]) -> Any:
        """W&B's run, told no more than was asked for."""
        import wandb

        return wandb.init(
            project=self.tracking["project"],
            entity=self.tracking["entity"],
            group=self.group,
            name=name,
            job_type="run",
            tags=[*_groups(result), *self.tracking["tags"]],
            config=result["config"],
            dir=str(self.directory.resolve()),  # wandb's own process may be elsewhere
            mode=self.mode,
            # No console, no code, no environment: a result has its own account of where it comes from.
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )


def tracker_for(tracking: Mapping[str, Any], directory: Path, group: str | None = None) -> Tracker:
    """What conf/tracking/*.yaml names."""
    name = tracking.get("name", "none")
    if name not in ("none", "wandb"):
        raise UsageError(f"tracking={name}: allowed is none, wandb")
    return Wandb(tracking, directory, group) if name == "wandb" else Tracker()


def mode_of(mode: str | None, environment: Mapping[str, str]) -> tuple[Mode, str]:
    """(online, offline or disabled; why)."""
    given = mode or environment.get("WANDB_MODE")
    if given:
        name = "tracking.mode" if mode else "WANDB_MODE"
        if given not in MODES:
            raise UsageError(f"{name}={given}: allowed is {', '.join(MODES)}")
        return MODES[given], f"{name} says so"
    if environment.get("WANDB_API_KEY"):
        return "online", "WANDB_API_KEY is set"
    return "offline", "no WANDB_API_KEY"


def metrics(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result's numbers and words, nested keys joined by dots."""
    return {key: value for key, value in flatten(result) if not key.startswith(NOT_METRICS) and value is not None}


def thinned(path: Path) -> list[dict[str, float]]:
    """At most 500 rows of the step series, evenly spread, first and last included."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    count = min(len(rows), HISTORY_ROWS)
    kept = [rows[index * (len(rows) - 1) // max(1, count - 1)] for index in range(count)]
    return [{key: float(value) for key, value in row.items() if value} for row in kept]


def _groups(result: Mapping[str, Any]) -> list[str]:
    flat = named(result["config"])
    return [str(flat[group]) for group in ("strategy", "model", "workload") if group in flat]
