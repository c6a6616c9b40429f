"""Published and ours side by side: a panel for each figure, a pair of bars for each cell, the seeds as dots."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvlab.harness.look import STRATEGIES, STYLE, WIDTH

if TYPE_CHECKING:
    from kvlab.reproduce.frame import Outcome
    from kvlab.reproduce.papers import Reproduced

LINE, MARGIN = 0.17, 0.95  # inches: of a cell, and around a panel
TITLE = 56  # characters
PUBLISHED, OURS, SEED = "#B8B8B8", STRATEGIES["paged"], "#DDCC77"


def draw(papers: list[Reproduced], path: Path) -> None:
    outcomes = [outcome for done in papers for outcome in done.outcomes]
    heights = [LINE * 1.6 * len(outcome.lines) + MARGIN for outcome in outcomes]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, sum(heights) + 0.3))
        panels = figure.subplots(len(outcomes), 1, squeeze=False, height_ratios=heights)[:, 0]
        for panel, outcome in zip(panels, outcomes, strict=True):
            _panel(panel, outcome)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False)
        figure.savefig(path, dpi=100, metadata={"Software": None})


def _panel(panel: Axes, outcome: Outcome) -> None:
    """A cell that does not count is pale, one that is missed is marked."""
    places = range(len(outcome.lines))
    panel.barh(
        [y - 0.2 for y in places],
        [line.cell.published for line in outcome.lines],
        0.38,
        color=PUBLISHED,
        label="published",
    )
    panel.barh([y + 0.2 for y in places], [line.measured for line in outcome.lines], 0.38, color=OURS, label="ours")
    for y, line in zip(places, outcome.lines, strict=True):
        if len(line.found.values) > 1:
            panel.plot(line.found.values, [y + 0.2] * len(line.found.values), "o", color=SEED, markersize=2)
    panel.set_yticks(places, [f"{line.cell.name}{_mark(line.verdict)}" for line in outcome.lines])
    panel.invert_yaxis()
    simulated = "SIMULATED, " if outcome.kind == "cost model" else ""
    title = f"{outcome.title} ({simulated}{outcome.kind}): {outcome.verdict}"
    panel.set_title(textwrap.fill(title, TITLE))
    panel.set_xlabel(outcome.lines[0].cell.unit)


def _mark(verdict: str) -> str:
    return {"within": "", "missed": " (missed)", "shown": " (shown)"}.get(verdict, " (contradicted)")
