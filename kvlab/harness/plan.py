"""What a sweep will run: combinations without the knobs that their strategy lacks, merged and ordered."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvlab.errors import UsageError
from kvlab.harness.compose import Composer
from kvlab.harness.composed import Composed
from kvlab.harness.nodes import SHARED
from kvlab.harness.overrides import override_name
from kvlab.harness.rundir import fingerprint

NOT_OF_A_RUN = ("hydra.run.dir", "hydra.sweep.dir", "hydra/launcher", "tracking")
LONGEST_LABEL = 120  # bytes; a file name may have 255


@dataclass(frozen=True)
class Planned:
    """One run: where it goes, and what it is."""

    label: str
    config: dict[str, Any]
    overrides: tuple[str, ...]

    @property
    def key(self) -> str:
        return fingerprint(self.config)


@dataclass(frozen=True)
class Plan:
    runs: list[Planned]  # in the order of running
    combinations: int
    lacking: dict[str, list[str]]  # knob that was varied -> strategies that lack it
    directory: Path
    tracking: dict[str, Any]
    left_out: list[str]  # by glob(), because it cannot be used: lines that say why
    launcher: dict[str, Any]  # where it runs; empty: on this machine

    @property
    def line(self) -> str:
        """36 combinations, 20 runs (16 duplicates: contiguous and vattention have no block_size)."""
        line = f"{_count(self.combinations, 'combination')}, {_count(len(self.runs), 'run')}"
        merged = self.combinations - len(self.runs)
        if not merged:
            return line
        why = "; ".join(
            f"{_words(names)} {'have' if len(names) > 1 else 'has'} no {knob}" for knob, names in self.lacking.items()
        )
        return f"{line} ({_count(merged, 'duplicate')}{': ' if why else ''}{why})"


def make_plan(overrides: Sequence[str]) -> Plan:
    """Raises UsageError if any combination is wrong; nothing is run then."""
    with Composer() as composer:
        combinations = composer.expand(overrides)
        composed = [composer.compose(combination) for combination in combinations]
    varied = _varied(combinations)
    if "block_size" in varied and any(item.config["pool_blocks"] for item in composed):
        raise UsageError("pool_blocks: its size depends on block_size, which is swept; give pool_bytes instead")
    merged: dict[str, tuple[tuple[str, ...], Composed]] = {}
    for combination, item in zip(combinations, composed, strict=True):
        kept = tuple(
            line for line in combination if _of_a_run(name := override_name(line)) and name not in item.lacking
        )
        merged.setdefault(fingerprint(item.config), (kept, item))
    runs = _label([(kept, item.config) for kept, item in merged.values()], varied)
    first, lacking = composed[0], _lacking(composed, varied)
    return Plan(
        order(runs), len(combinations), lacking, first.sweep_dir, first.tracking, composer.left_out, first.launcher
    )


def order(runs: Iterable[Planned]) -> list[Planned]:
    """Seeds outermost; what differs in the strategy and its knobs only stands together, shuffled by the seed.

    So a machine that grows slower during a sweep does so for all strategies alike.
    """
    cells: dict[Any, dict[str, list[Planned]]] = {}
    for run in runs:
        rest = {name: value for name, value in run.config.items() if name not in ("strategy", *SHARED)}
        cell = json.dumps(rest, sort_keys=True)
        cells.setdefault(run.config["seed"], {}).setdefault(cell, []).append(run)
    ordered = []
    for by_cell in cells.values():
        for cell, members in by_cell.items():
            shuffled = sorted(members, key=lambda run: run.key)
            random.Random(cell).shuffle(shuffled)  # the cell's text holds the seed
            ordered += shuffled
    return ordered


def label_of(overrides: Iterable[str], varied: set[str]) -> str:
    """A name for a directory: the varied overrides, readable, safe in a shell and a file system."""
    words = [line.lstrip("+") for line in overrides if override_name(line) in varied]
    return re.sub(r"[^\w.,=+-]+", "_", ",".join(words), flags=re.ASCII)[:LONGEST_LABEL] or "run"


def _label(runs: list[tuple[tuple[str, ...], dict[str, Any]]], varied: set[str]) -> list[Planned]:
    """Labels that differ also where sanitising or shortening made two alike."""
    labels = [label_of(kept, varied) for kept, _ in runs]
    return [
        Planned(label if labels.count(label) == 1 else f"{label}-{fingerprint(config)[:8]}", config, kept)
        for label, (kept, config) in zip(labels, runs, strict=True)
    ]


def _varied(combinations: Sequence[tuple[str, ...]]) -> set[str]:
    """Names with more than one value."""
    values: dict[str, set[str]] = {}
    for combination in combinations:
        for line in combination:
            values.setdefault(override_name(line), set()).add(line)
    return {name for name, lines in values.items() if len(lines) > 1}


def _lacking(composed: Iterable[Composed], varied: set[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in composed:
        for knob in item.lacking:
            names = found.setdefault(knob, [])
            if item.strategy not in names:
                names.append(item.strategy)
    return {knob: sorted(names) for knob, names in found.items() if knob in varied}


def _of_a_run(name: str) -> bool:
    return name not in NOT_OF_A_RUN and not name.startswith("hydra.launcher.")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _words(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
