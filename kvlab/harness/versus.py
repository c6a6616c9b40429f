"""Two sweeps against each other: runs of one configuration and seed are a pair, and their ratio is what counts.

Seeds draw the same requests on both sides, so a ratio within a pair is free of what makes seeds differ.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any, NamedTuple

from kvlab.errors import UsageError
from kvlab.harness.choose import is_timed, refuse_mixed
from kvlab.harness.groups import group
from kvlab.harness.results import Run
from kvlab.harness.sheet import Sheet
from kvlab.harness.stats import METHOD, Estimate, estimate
from kvlab.harness.table import DOUBT, knob_text

METRICS = ("tokens_per_s", "mean_batch_size", "utilization")  # compared where none is named
ASIDE = ("timing", "preset_overridden", "engine.memory_map", "hydra.", "tracking")  # does not make another run


class Line(NamedTuple):
    """One metric of one configuration, over the pairs of its seeds."""

    key: dict[str, Any]
    metric: str
    here: Estimate
    there: Estimate
    ratio: Estimate  # here / there, pair by pair
    doubted: bool  # a time of which one side is not to be trusted


class Versus(NamedTuple):
    lines: list[Line]
    alone: list[str]  # what has no partner, a line for each side


def versus(
    here: list[Run], there: list[Run], chosen: Iterable[str] = (), ignoring: Iterable[str] = (), mix: bool = False
) -> Versus:
    """ignoring: configuration keys in which the two differ on purpose. Raises UsageError where there is no pair."""
    aside, names = (*ASIDE, *ignoring), list(chosen) or list(METRICS)
    if not mix:
        refuse_mixed([*here, *there], any(map(is_timed, names)))
    mine, others = _by_setting(here, aside), _by_setting(there, aside)
    pairs = {mine[key].path: (mine[key], others[key]) for key in mine if key in others}
    if not pairs:
        raise UsageError(f"--against: {_why(here, there, aside)}")
    lines = [
        line
        for row in group([run for run, _ in pairs.values()])
        for metric in names
        if (line := _line(row.key, metric, [pairs[run.path] for run in row.runs]))
    ]
    if not lines:
        raise UsageError(f"--against: {len(pairs)} pairs, none with {' or '.join(names)} on both sides")
    alone = [
        f"{len(left)} of {len(runs)} runs {where} have no partner: {', '.join(sorted(run.path.name for run in left))}"
        for where, runs, left in (
            ("here", here, [run for run in here if run.path not in pairs]),
            ("there", there, _without(there, [other for _, other in pairs.values()])),
        )
        if left
    ]
    return Versus(lines, alone)


def sheet(compared: Versus) -> Sheet:
    keys = list(compared.lines[0].key)
    body = [
        [*(knob_text(key, line.key.get(key)) for key in keys), line.metric, *_numbers(line), str(line.ratio.n)]
        for line in compared.lines
    ]
    notes = [f"Medians over n pairs of one configuration and seed; ratio here / there, [{METHOD}].", *compared.alone]
    if any(line.doubted for line in compared.lines):
        notes.append(DOUBT)
    return Sheet([*keys, "metric", "here", "there", "ratio", "n"], body, {*keys, "metric"}, notes)


def to_csv(compared: Versus) -> str:
    """A line for each configuration and metric."""
    keys, out = list(compared.lines[0].key), io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [f"ratio{part}" for part in ("", "_least", "_most", "_low95", "_high95")]
    writer.writerow([*keys, "metric", "here", "there", *names, "n"])
    for line in compared.lines:
        known = [line.key.get(key) for key in keys]
        writer.writerow([*known, line.metric, line.here.median, line.there.median, *line.ratio])
    return out.getvalue()


def _by_setting(runs: list[Run], aside: tuple[str, ...]) -> dict[tuple[Any, ...], Run]:
    """Finished runs by their configuration and seed."""
    found: dict[tuple[Any, ...], Run] = {}
    for run in (run for run in runs if run.status == "ok" and run.config):
        key = _setting(run, aside)
        if key in found:
            raise UsageError(
                f"--against: {found[key].path} and {run.path} are one configuration and seed, "
                "so that a partner would have two; give one directory a side"
            )
        found[key] = run
    return found


def _setting(run: Run, aside: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(sorted((key, repr(value)) for key, value in run.config.items() if not key.startswith(aside)))


def _line(key: dict[str, Any], metric: str, pairs: list[tuple[Run, Run]]) -> Line | None:
    """None where no pair has the metric on both sides, or it is 0 there."""
    numbers = [
        (run.values[metric], other.values[metric])
        for run, other in pairs
        if _is_number(run.values.get(metric)) and _is_number(other.values.get(metric)) and other.values[metric]
    ]
    if not numbers:
        return None
    here, there = zip(*numbers, strict=True)
    flagged = any(run.values.get("timing_valid") is False for pair in pairs for run in pair)
    ratios = [a / b for a, b in numbers]
    return Line(key, metric, estimate(here), estimate(there), estimate(ratios), flagged and is_timed(metric))


def _numbers(line: Line) -> list[str]:
    doubt, bounds = " (*)" if line.doubted else "", line.ratio.interval
    ratio = f"{line.ratio.median:.3f}" + (f" [{bounds[0]:.3f}-{bounds[1]:.3f}]" if bounds else "")
    return [f"{line.here.median:,.4g}", f"{line.there.median:,.4g}", ratio + doubt]


def _why(here: list[Run], there: list[Run], aside: tuple[str, ...]) -> str:
    """What stands between the two sides."""
    differ = [
        key
        for key in sorted({key for run in [*here, *there] for key in run.config})
        if not key.startswith(aside)
        and {repr(run.config.get(key)) for run in here}.isdisjoint(repr(run.config.get(key)) for run in there)
    ]
    said = (
        f"they differ in {', '.join(differ)} (--ignoring leaves that aside)" if differ else "they share no finished run"
    )
    return f"no run here has the configuration and seed of one there; {said}"


def _without(runs: list[Run], others: list[Run]) -> list[Run]:
    paths = {run.path for run in others}
    return [run for run in runs if run.path not in paths]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
