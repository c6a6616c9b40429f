"""Runs put together by what was varied: one Row for the runs that differ in nothing but the seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from kvlab.engine.capacity import size_text
from kvlab.errors import UsageError
from kvlab.harness.nodes import SHARED
from kvlab.harness.results import NAMED, Run

FIRST = ("strategy", "model", "workload", "max_len", *SHARED)  # in this order
CLASS = "strategy._target_"  # tells two strategies apart that go by the same name
ASIDE = ("seed", "timing", "preset", "preset_overridden", "engine.memory_map")
ASIDE_PREFIXES = ("hydra.", "tracking")
DESCRIPTIVE = (
    "schema_version",
    "seed",
    "deterministic",
    "timing_valid",
    "capacity.",
    "versions.",
    "machine.",
    "workload.",
)


class Spread(NamedTuple):
    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Row:
    """Runs with the same key. `runs` are ok; `holes` were refused or failed."""

    key: dict[str, Any]
    runs: list[Run]
    holes: list[Run]
    files: frozenset[str] = frozenset()  # knobs whose values are paths and told apart by the file's name alone

    def spread(self, metric: str) -> Spread | None:
        """Median and range over the runs that report the metric; None if none does."""
        values = self.numbers(metric)
        return Spread(median(values), min(values), max(values), len(values)) if values else None

    def numbers(self, metric: str) -> list[float]:
        """Of the runs that report it."""
        return [run.values[metric] for run in self.runs if _is_number(run.values.get(metric))]

    @property
    def shown(self) -> dict[str, Any]:
        """The key as people read it: a file by its name."""
        return {key: Path(value).name if value and key in self.files else value for key, value in self.key.items()}

    @property
    def label(self) -> str:
        """The key in words, as figures print it."""
        return _phrase(self.shown)

    @property
    def short(self) -> str:
        """How memory is managed, alone."""
        return _phrase({key: value for key, value in self.shown.items() if is_placement(key)}) or self.label

    @property
    def setting(self) -> str:
        """Everything but how memory is managed."""
        return _phrase({key: value for key, value in self.shown.items() if not is_placement(key)})

    @property
    def timed(self) -> bool:
        """Whether every run's times can be trusted."""
        return all(run.values.get("timing_valid", True) for run in self.runs)


def is_placement(key: str) -> bool:
    """Whether it says how memory is managed, and so must not change a token."""
    return key in ("preset", "strategy", "layout", *SHARED) or key.startswith(("strategy.", "layout."))


def group(runs: list[Run], by: list[str] | None = None) -> list[Row]:
    """Rows sorted so that those to compare, which differ only in how memory is managed, stand together.

    Runs of which nothing is known come last, each a row of its own.
    """
    known, unknown = [run for run in runs if run.config], [run for run in runs if not run.config]
    keys = _checked(by, known) if by else varying(known)
    cells: dict[tuple[Any, ...], list[Run]] = {}
    for run in known:
        cells.setdefault(_values(run, keys), []).append(run)
    sorting = sorted(range(len(keys)), key=lambda index: is_placement(keys[index]))
    ordered = sorted(cells, key=lambda values: [sortable(values[index]) for index in sorting])
    files = frozenset(key for key in keys if key.endswith(".path") and _have_names_of_their_own(known, key))
    rows = [replace(_row(dict(zip(keys, values, strict=True)), cells[values]), files=files) for values in ordered]
    return rows + [_row({keys[0]: run.path.name}, [run]) for run in unknown]


def varying(runs: list[Run]) -> list[str]:
    """`strategy`, and the keys that split runs which the keys before leave together; never the seed.

    So a workload's own parameters appear only where one workload was run with several. Where there are several presets
    they come first.
    """
    chosen = ["preset", "strategy"] if len({run.config.get("preset") for run in runs}) > 1 else ["strategy"]
    for key in _candidates(runs):
        if len({_values(run, [*chosen, key]) for run in runs}) > len({_values(run, chosen) for run in runs}):
            chosen.append(key)
    return chosen


def metrics(rows: list[Row]) -> list[str]:
    """Numeric keys that any run reports, sorted."""
    keys = {key for row in rows for run in row.runs for key, value in run.values.items() if _is_number(value)}
    return sorted(key for key in keys if not key.startswith(DESCRIPTIVE))


def peers(run: Run) -> tuple[Any, ...]:
    """Equal for two runs that must generate the same tokens."""
    aside = ("timing", "preset", "engine.memory_map", *ASIDE_PREFIXES)
    kept = {k: v for k, v in run.config.items() if not is_placement(k) and not k.startswith(aside)}
    return tuple(sorted((key, repr(value)) for key, value in kept.items()))


def _phrase(key: dict[str, Any]) -> str:
    """Knobs and their values: `paged, block 16`, `vattention, 64 KiB page groups`."""
    words = {"block_size": "block {}", "page_group_bytes": "{} page groups"} | dict.fromkeys(("preset", *NAMED), "{}")
    texts = {k: size_text(v) if k.endswith("_bytes") else f"{v}" for k, v in key.items() if v is not None}
    return ", ".join(words.get(name, f"{name} {{}}").format(text) for name, text in texts.items())


def _row(key: dict[str, Any], runs: list[Run]) -> Row:
    runs = sorted(runs, key=lambda run: (sortable(run.seed), str(run.path)))
    return Row(key, [r for r in runs if r.status == "ok"], [r for r in runs if r.status != "ok"])


def _candidates(runs: list[Run]) -> list[str]:
    found = {key for run in runs for key in run.config}
    own = sorted(
        key
        for key in found
        if key not in (*FIRST, *ASIDE) and not key.startswith(ASIDE_PREFIXES) and not key.endswith("_target_")
    )
    return [key for key in (CLASS, *FIRST[1:]) if key in found] + own


def _checked(by: Iterable[str], runs: list[Run]) -> list[str]:
    found = sorted({key for run in runs for key in run.config if not key.endswith("_target_")})
    wrong = [key for key in by if key not in found]
    if wrong:
        raise UsageError(
            f"--by {' '.join(wrong)}: not a configuration key of these runs; allowed are {', '.join(found)}"
        )
    return list(by)


def _values(run: Run, keys: list[str]) -> tuple[Any, ...]:
    return tuple(value_of(run, key) for key in keys)


def value_of(run: Run, key: str) -> Any:
    """What the run's configuration says, in a form that can be a key."""
    value = run.config.get(key)
    return tuple(value) if isinstance(value, list) else value


def _have_names_of_their_own(runs: list[Run], key: str) -> bool:
    paths = {str(run.config[key]) for run in runs if run.config.get(key)}
    return len({Path(path).name for path in paths}) == len(paths)


def sortable(value: Any) -> tuple[int, Any]:
    """Numbers by size, then words, then what is missing."""
    if value is None:
        return 2, ""
    return (0, value) if _is_number(value) else (1, str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
