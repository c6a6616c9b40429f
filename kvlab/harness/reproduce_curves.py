"""`kvlab reproduce curves`: published curves of latency by rate beside ours, as a figure, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvlab.harness import output
from kvlab.harness.look import OTHERS, STRATEGIES, STYLE, WIDTH
from kvlab.harness.reproduce_pages import number
from kvlab.harness.table import grid

if TYPE_CHECKING:
    from kvlab.reproduce.curves import Curves, Point

COLOURS = {"vLLM": STRATEGIES["paged"], "Orca (Oracle)": OTHERS[3], "Orca (Pow2)": OTHERS[2], "Orca (Max)": OTHERS[1]}
HEAD = ["panel", "system", "sustained here, 1/s", "published", "vLLM's over it here", "published "]
POINT = ("rate_per_s", "latency_s_per_token", "low", "high")
LIMITS, TICKS = (0.02, 1.6), (0.03, 0.1, 0.3, 1)  # s/token
PANEL_HEIGHT = 2.4  # inches


def markdown(panels: list[Curves], command: str, seeds: tuple[int, ...], picture: str) -> str:
    from kvlab.reproduce.curves import sustained

    body = []
    arrivals = ", ".join(f"{panel.trace_s:g} s ({panel.name})" for panel in panels)
    for panel in panels:
        best, printed = sustained(panel.ours["vLLM"]), sustained(panel.published["vLLM"])
        for system, points in panel.ours.items():
            here, there = sustained(points), sustained(panel.published[system])
            figures = [here, there, best / here, printed / there]
            body.append([panel.name, system, *map(number, figures)])
    parts = [
        "# Latency by rate, published and ours",
        "PagedAttention (Kwon et al., SOSP 2023, CC BY 4.0), its curves read off the figures; ours SIMULATED.",
        f"    {command}\n\nSeeds {', '.join(map(str, seeds))}; ours is their median.",
        "Rates are shares of what vLLM sustains at 0.5 s/token, each on its own server: the modelled one is faster.\n"
        f"The paper's arrivals take an hour. Ours take {arrivals}: a queue that grows has no time to grow long, so "
        "that our curves rise less steeply.",
        f"![Latency by rate]({picture})",
        "Where each curve crosses 0.5 s/token. Ours is read between the six rates of a curve of medians, so that the "
        "other pages, which look closer and take ratios seed by seed, differ by some percent:",
        grid(HEAD, body, left={"panel", "system"}).rstrip(),
    ]
    return "\n\n".join(parts) + "\n"


def records(panels: list[Curves]) -> list[dict[str, str | float]]:
    """A point each, as --json and the CSV have it."""
    return [
        {"panel": panel.name, "system": system, "whose": whose, **dict(zip(POINT, point, strict=True))}
        for panel in panels
        for whose, curves in (("published", panel.published), ("ours", panel.ours))
        for system, points in curves.items()
        for point in points
    ]


def csv_text(panels: list[Curves]) -> str:
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n")
    write.writerow(["panel", "system", "whose", *POINT])
    for record in records(panels):
        write.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in record.values()])
    return text.getvalue()


def write(path: Path, text: str, panels: list[Curves]) -> None:
    """FILE.md, .csv and .png."""
    output.write(path, text)
    output.write(path.with_suffix(".csv"), csv_text(panels))
    draw(panels, path.with_suffix(".png"))


def draw(panels: list[Curves], path: Path) -> None:
    rows = -(-len(panels) // 2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, PANEL_HEIGHT * rows + 0.5))
        axes = list(figure.subplots(rows, 2, squeeze=False, sharey=True).flat)
        for axis, panel in zip(axes, panels, strict=False):
            _panel(axis, panel)
        for axis in axes[len(panels) :]:
            axis.remove()
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False)
        figure.savefig(path, dpi=100, metadata={"Software": None})


def _panel(axis: Axes, panel: Curves) -> None:
    from kvlab.reproduce.curves import sustained

    for curves, style, whose in ((panel.published, "--", "published"), (panel.ours, "-", "ours")):
        whole = sustained(curves["vLLM"])
        for system, points in curves.items():
            _line(axis, points, whole, style, f"{system}, {whose}", COLOURS[system])
    axis.set_yscale("log")
    axis.set_ylim(*LIMITS)
    axis.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axis.minorticks_off()
    axis.set_title(f"{panel.title} (ours SIMULATED)")
    axis.set_xlabel("rate, in what vLLM sustains")
    axis.set_ylabel("s/token")


def _line(axis: Axes, points: list[Point], whole: float, style: str, label: str, colour: str) -> None:
    rate = [point.rate / whole for point in points]
    axis.plot(rate, [point.latency for point in points], style, color=colour, label=label, linewidth=1.2)
    if any(point.low < point.high for point in points):
        axis.fill_between(
            rate, [point.low for point in points], [point.high for point in points], color=colour, alpha=0.2, lw=0
        )
