"""A paper's figures: what was printed, how far ours may be off, and what our runs found.

Published values and tolerances are data files, and come from nowhere else; how a figure is measured is a function
that sees neither. A cell that the paper itself contradicts, or that is shown for comparison, decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).parent
KINDS = ("arithmetic", "bookkeeping", "cost model", "measured here")

Compose = Callable[[list[str]], dict[str, Any]]  # overrides to a resolved configuration


@dataclass(frozen=True)
class Lab:
    """What a figure is measured with. `kept`: runs that several figures read, by their overrides."""

    compose: Compose
    seeds: tuple[int, ...] = (0, 1, 2)
    kept: dict[tuple[str, ...], Any] = field(default_factory=dict)


class Found(NamedTuple):
    """A cell's values: one for each seed, or one where nothing is drawn."""

    values: list[float]
    how: str  # what was run and read


Measure = Callable[[Lab], dict[str, Found]]


@dataclass(frozen=True)
class Cell:
    """One published value."""

    figure: str
    name: str
    published: float
    allowed: float  # deviation, in the unit
    why_allowed: str
    unit: str
    contradicted: str = ""  # by the paper itself: where
    shown: str = ""  # why it is shown and not counted

    @property
    def counts(self) -> bool:
        return not (self.contradicted or self.shown)


@dataclass(frozen=True)
class Line:
    """A cell and what was found."""

    cell: Cell
    found: Found
    kind: str

    @property
    def measured(self) -> float:
        return median(self.found.values)

    @property
    def deviation(self) -> float:
        return self.measured - self.cell.published

    @property
    def within(self) -> bool:
        # Rounding must not turn 0.05 into more than itself.
        return abs(self.deviation) <= self.cell.allowed + 1e-9

    @property
    def verdict(self) -> str:
        if self.cell.contradicted:
            return "the paper contradicts itself"
        if self.cell.shown:
            return "shown"
        return "within" if self.within else "missed"

    def record(self) -> dict[str, Any]:
        """The keys that scripts rely on."""
        return {
            "figure": self.cell.figure,
            "cell": self.cell.name,
            "published": self.cell.published,
            "measured": self.measured,
            "deviation": self.deviation,
            "tolerance": self.cell.allowed,
            "within": self.within,
            "how": self.kind,
            "unit": self.cell.unit,
            "values": self.found.values,
            "verdict": self.verdict,
            "run": self.found.how,
        }


@dataclass(frozen=True)
class Outcome:
    """A figure that was measured."""

    name: str
    title: str
    kind: str
    lines: list[Line]
    note: str
    missed_because: str  # the known explanation of a miss; empty: none is known
    minutes: float = 0.0

    @property
    def counted(self) -> bool:
        return any(line.cell.counts for line in self.lines)

    @property
    def reproduced(self) -> bool:
        """Every cell that counts is within its tolerance."""
        return self.counted and all(line.within for line in self.lines if line.cell.counts)

    @property
    def verdict(self) -> str:
        if not self.counted:
            return "not counted"
        return "reproduced" if self.reproduced else "missed"


@dataclass(frozen=True)
class Paper:
    """Its figures as printed, and those that nobody attempts, with the reason."""

    name: str
    source: str
    figures: dict[str, dict[str, Any]]
    tolerances: dict[str, dict[str, Any]]
    misses: dict[str, str]
    not_attempted: dict[str, str]

    @staticmethod
    def load(name: str) -> Paper:
        printed, tolerances, misses = (
            json.loads((HERE / file).read_text())
            for file in (f"published/{name}.json", "tolerances.json", "misses.json")
        )
        return Paper(
            name, printed["paper"], printed["figures"], tolerances[name], misses[name], printed["not_attempted"]
        )

    def cells(self, figure: str) -> list[Cell]:
        printed, tolerance = self.figures[figure], self.tolerances[figure]
        of_cells = tolerance.get("cells", {})
        shown, contradicted = printed.get("shown", {}), printed.get("contradicted", {})
        return [
            Cell(
                figure, name, value, *_allowed(of_cells.get(name, tolerance), value), printed["unit"],
                contradicted.get(name, ""), shown.get(name, shown.get("*", "")),
            )
            for name, value in printed["cells"].items()
        ]  # fmt: skip

    def outcome(self, figure: str, kind: str, found: dict[str, Found], minutes: float) -> Outcome:
        """KeyError: a cell was not measured. ValueError: one was that the paper does not have."""
        cells, printed = self.cells(figure), self.figures[figure]
        if more := found.keys() - {cell.name for cell in cells}:
            raise ValueError(f"{figure}: measured and not published: {', '.join(sorted(more))}")
        lines = [Line(cell, found[cell.name], kind) for cell in cells]
        because = self.misses.get(figure, "")
        return Outcome(figure, printed["title"], kind, lines, printed.get("note", ""), because, minutes)


def _allowed(tolerance: dict[str, Any], published: float) -> tuple[float, str]:
    if "absolute" in tolerance:
        return float(tolerance["absolute"]), str(tolerance["why"])
    return abs(published) * float(tolerance["relative"]), str(tolerance["why"])


def scoreboard(outcomes: list[Outcome]) -> dict[str, tuple[int, int]]:
    """By kind: figures reproduced, figures counted."""
    counted = [outcome for outcome in outcomes if outcome.counted]
    return {
        kind: (sum(o.reproduced for o in counted if o.kind == kind), sum(o.kind == kind for o in counted))
        for kind in KINDS
        if any(o.kind == kind for o in counted)
    }
