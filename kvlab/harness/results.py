"""Run directories read back from disk: one Run for each, its values flat, ready for a table or pandas.

A run directory holds result.json, or error.txt where the run failed before it could write one. What holds
neither is not finished and is left alone.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kvlab.errors import UsageError
from kvlab.harness import schema
from kvlab.harness.manifest import MANIFEST
from kvlab.harness.rundir import CONFIG, EARLIER, ERROR, RESULT, STEPS, read_json

ENDS = (RESULT, ERROR)  # one of them is there when a run is over
# Configuration groups that are known by their name.
NAMED = ("strategy", "model", "workload", "layout", "gpu", "vmm", "cost")


@dataclass(frozen=True)
class Run:
    """One run directory. `values` is result.json with nested keys joined by dots; the configuration is apart."""

    path: Path
    status: str  # ok, refused or failed
    reason: str  # why it is not ok, on one line
    values: dict[str, Any]
    config: dict[str, Any]  # flat; strategy, model and workload hold names; empty where nothing is known

    @property
    def seed(self) -> Any:
        return self.config.get("seed", self.values.get("seed"))

    @cached_property
    def steps(self) -> dict[str, list[float]]:
        """Columns of steps.csv; empty if the run wrote none. A line that is not whole is left out."""
        path = self.path / STEPS
        if not path.exists():
            return {}
        return _columns_at_once(path) or _columns(path)


def load(*directories: Path) -> tuple[list[Run], list[str]]:
    """The finished runs at or below the directories, sorted by path, and a warning for each file that cannot be read.

    A run below two of them is there once. Raises UsageError if one is no directory or has no finished run in it.
    """
    runs: dict[Path, Run] = {}
    warnings = []
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"{directory}: no such directory; give a run's or a sweep's directory")
        paths = find(directory)
        if not paths:
            raise UsageError(f"{directory}: no finished run below it (looked for {RESULT} and {ERROR})")
        for path in (path for path in paths if path.resolve() not in runs):
            runs[path.resolve()], warning = read(path)
            warnings += [warning] if warning else []
    return list(runs.values()), warnings


def find(directory: Path) -> list[Path]:
    """Directories at or below `directory` that hold a result or an error, sorted; not those that a sweep replaced."""
    found = {path.parent for name in (RESULT, ERROR) for path in directory.rglob(name)}
    return sorted(path for path in found if EARLIER not in path.relative_to(directory).parts)


def not_run(*directories: Path) -> list[str]:
    """A line for each sweep at or below the directories that has runs without a result: still waiting, or cut short."""
    lines = []
    for path in dict.fromkeys(path for directory in directories for path in sorted(directory.rglob(MANIFEST))):
        listed = [run for run in (read_json(path) or {}).get("runs", []) if "directory" in run]
        over = [any((path.parent / run["directory"] / name).exists() for name in ENDS) for run in listed]
        left = [str(run.get("label")) for run, ended in zip(listed, over, strict=True) if not ended]
        if left:
            named = ", ".join(left[:8]) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
            lines.append(f"Not run: {len(left)} of {len(listed)} runs of {path.parent.name}: {named}.")
    return lines


def read(path: Path) -> tuple[Run, str]:
    """The run in directory `path`, and a warning, empty if all is well."""
    if not (path / RESULT).exists():
        return Run(path, "failed", _last_line(path / ERROR), {}, _config_beside(path)), ""
    try:
        result = json.loads((path / RESULT).read_text())
        wrong = schema.problem(result)
    except (OSError, ValueError) as error:
        wrong = str(error) or type(error).__name__
    if not wrong:
        return _run(path, result), ""
    reason = f"unreadable {RESULT}: {_one_line(wrong)}"
    return Run(path, "failed", reason, {}, _config_beside(path)), f"{path}: {reason}; shown as a hole"


def _run(path: Path, result: dict[str, Any]) -> Run:
    config = result.pop("config", None) or {}
    knobs = named(config)
    knobs.setdefault("strategy", result.get("strategy"))
    return Run(path, result["status"], _one_line(str(result.get("reason") or "")), dict(flatten(result)), knobs)


def _config_beside(path: Path) -> dict[str, Any]:
    """What a run without a result was asked to do."""
    try:
        return named(json.loads((path / CONFIG).read_text()))
    except (OSError, ValueError, AttributeError):
        return {}


def named(config: Mapping[str, Any]) -> dict[str, Any]:
    """A flat configuration in which strategy, model and workload stand for their names."""
    flat = dict(flatten(config))
    for group in NAMED:
        if f"{group}.name" in flat:
            flat[group] = flat.pop(f"{group}.name")
    return flat


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(key, value) for each leaf, keys joined by dots; lists are leaves."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _columns_at_once(path: Path) -> dict[str, list[float]]:
    """Nothing where a line is not whole or a cell is empty."""
    import numpy as np

    with path.open() as file:
        header, lines = file.readline().rstrip("\n").split(","), file.readlines()
        try:
            table = np.loadtxt(lines, delimiter=",", ndmin=2) if lines else np.empty((0, 0))
        except ValueError:
            return {}
    return dict(zip(header, table.T.tolist(), strict=True)) if table.shape[1:] == (len(header),) else {}


def _columns(path: Path) -> dict[str, list[float]]:
    with path.open(newline="") as file:
        header, *lines = list(csv.reader(file)) or [[]]
    whole = [numbers for line in lines if len(numbers := _numbers(line)) == len(header)]
    return {name: [numbers[i] for numbers in whole] for i, name in enumerate(header)}


def _numbers(line: list[str]) -> list[float]:
    try:
        return [float(cell or "nan") for cell in line]
    except ValueError:
        return []


def _last_line(path: Path) -> str:
    """The last line that says something: of a traceback, the error."""
    lines = path.read_text(errors="replace").strip().splitlines()
    return _one_line(lines[-1]) if lines else f"{ERROR} is empty"


def _one_line(text: str) -> str:
    return " ".join(text.split())
