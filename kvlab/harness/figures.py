"""Figures from the rows of a table: bars of how the pool was used and what that gave; timelines.py draws the series."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from kvlab.harness.curves import latencies, over_rates
from kvlab.harness.groups import Row, Spread
from kvlab.harness.look import DARK, LABEL, PARTS, RARE, STYLE, WIDTH, legend_columns, mark, row_colours, wrapped
from kvlab.harness.map_figures import memory_maps, with_map
from kvlab.harness.results import Run
from kvlab.harness.series import first_setting
from kvlab.harness.timelines import pool_over_time, utilization


def draw(rows: list[Row], directory: Path, pdf: bool = False) -> tuple[list[Path], list[str]]:
    """Every figure the rows allow, as PNG files in `directory` (and as PDF), and a line on each thing left out."""
    rows = [row for row in rows if row.runs]
    if not rows:
        return [], ["No figure: no run finished."]
    directory.mkdir(parents=True, exist_ok=True)
    paths, notes = list[Path](), list[str]()
    simulated = any(run.values.get("simulated") for row in rows for run in row.runs)
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in another script is drawn as boxes
        for name, figure in _figures(rows, notes):
            paths.append(_save(figure, directory / f"{name}.png", simulated))
            if pdf:
                figure.savefig(directory / f"{name}.pdf", metadata={"CreationDate": None})
    return paths, notes


def _figures(rows: list[Row], notes: list[str]) -> Iterator[tuple[str, Figure]]:
    """Those that the rows allow, by name; `notes` takes a line on each thing left out."""
    colours = row_colours(rows)
    yield "waste", waste_bars(rows)
    yield "throughput", throughput(rows, colours)
    shown, left_out = first_setting(rows)
    notes += left_out
    if shown:
        yield "utilization", utilization(shown, colours)
        yield "pool_over_time", pool_over_time(shown)
        mapped = with_map(shown)
        if mapped and (maps := memory_maps(mapped)):
            yield "memory_maps", maps
        else:
            notes.append("No memory map: runs keep one with engine.memory_map=480.")
        if distributions := latencies(shown, colours):
            yield "latency", distributions
    curves, left_out = over_rates(rows, colours)
    notes += left_out
    if curves:
        yield "rate_latency", curves


def waste_bars(rows: list[Row]) -> Figure:
    """A bar for each row, split as in Fig. 2 of the PagedAttention paper: medians over the seeds."""
    figure, (axes,) = _bars(rows, panels=1)
    each = [shares(row) for row in rows]
    percents = {part: np.array([100 * split[part] for split in each]) for part in PARTS}
    parts = [part for part in PARTS if part not in RARE or percents[part].max() >= 0.05]
    left, places = np.zeros(len(rows)), range(len(rows))
    for part in parts:
        name, colour = PARTS[part]
        axes.barh(places, percents[part], left=left, color=colour, label=name, height=0.7, edgecolor="white")
        for place, start, share in zip(places, left.tolist(), percents[part].tolist(), strict=True):
            if share >= 4:
                ink = "white" if part in DARK else "#222222"
                axes.text(start + share / 2, place, f"{share:.1f}", ha="center", va="center", color=ink, size=8)
        left = left + percents[part]
    axes.set_xlim(0, 100)
    axes.xaxis.set_major_formatter(PercentFormatter(decimals=0))
    figure.supxlabel(
        f"share of the pool until no request waits any more; medians (need not add up) of {_seeds(rows)}", size=9
    )
    columns = legend_columns([PARTS[part][0] for part in parts])
    figure.legend(loc="outside upper center", ncols=columns, frameon=False, handlelength=1.0)
    return figure


def shares(row: Row) -> dict[str, float]:
    """Medians over the seeds; what is rounded up and what is free add up to the median of what is external."""
    external = _median(row, "waste.external")
    rounded = min(external, median(_rounded(run) for run in row.runs))
    inside = {part: _median(row, f"waste.{part}") for part in ("reservation", "internal", "cached")}
    return {"token_state": _median(row, "utilization"), **inside, "rounded": rounded, "free": external - rounded}


def _rounded(run: Run) -> float:
    """Share of the pool that is held beyond every room: external, less what is neither held nor cached."""
    external, cached, held = (run.values.get(key) for key in ("waste.external", "waste.cached", "pool_usage"))
    return max(0.0, external - (1 - held - (cached or 0.0))) if external is not None and held is not None else 0.0


def throughput(rows: list[Row], colours: dict[str, str]) -> Figure:
    """Tokens a second and mean batch: median, and a line from the least to the most of the seeds."""
    figure, axes = _bars(rows, panels=2)
    for panel, metric, title in (
        (axes[0], "tokens_per_s", "output tokens/s"),
        (axes[1], "mean_batch_size", "mean batch, sequences"),
    ):
        for place, row in enumerate(rows):
            spread = row.spread(metric)
            if spread is None:
                panel.text(0, place, " not reported", va="center", color="#666666")
            else:
                doubt = mark(row) if metric == "tokens_per_s" else ""
                _bar(panel, place, spread, colours[row.short], doubt)
        panel.margins(x=0.18)
        panel.set_xlim(left=0)
        panel.locator_params(axis="x", nbins=4)
        panel.set_title(title)
    doubted = "" if all(row.timed for row in rows) else "; (*) not to be used, see the table"
    figure.supxlabel(f"bar: median, line: least to most, of {_seeds(rows)}{doubted}", size=9)
    return figure


def _bar(panel: Axes, place: int, spread: Spread, colour: str, doubt: str) -> None:
    panel.barh(place, spread.median, color=colour, height=0.7)
    for ink, width in (("white", 3.0), ("#222222", 1.2)):  # legible on any bar
        panel.plot([spread.low, spread.high], [place, place], color=ink, linewidth=width)
    words = f"{spread.median:,.1f}{doubt}"
    panel.annotate(words, (spread.high, place), (4, 0), textcoords="offset points", va="center")


def _bars(rows: list[Row], panels: int) -> tuple[Figure, list[Axes]]:
    """Horizontal bars, so that a long label stays readable; the first row on top."""
    counted = len({len(row.runs) for row in rows}) > 1
    labels = [_label(row, counted) for row in rows]
    lines = max(label.count("\n") + 1 for label in labels)
    figure = Figure(figsize=(WIDTH, 1.2 + (0.2 + 0.16 * lines) * max(3, len(rows))))
    axes = list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])
    axes[0].set_yticks(range(len(rows)), labels)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    for panel in axes:
        panel.tick_params(axis="y", length=0)
        panel.spines["left"].set_visible(False)
    return figure, axes


def _label(row: Row, counted: bool) -> str:
    return wrapped(row.label + (f" (n\u00a0=\u00a0{len(row.runs)})" if counted else ""), LABEL)


def _seeds(rows: list[Row]) -> str:
    """How many there are; where that differs, each label says it."""
    counts = {len(row.runs) for row in rows}
    if len(counts) > 1:
        return "n seeds"
    return f"n = {len(rows[0].runs)} seed{'s' if counts != {1} else ''}"


def _median(row: Row, metric: str) -> float:
    spread = row.spread(metric)
    return spread.median if spread else 0.0


def _save(figure: Figure, path: Path, simulated: bool) -> Path:
    if simulated:
        figure.text(0.004, 0.004, "SIMULATED", size=9, color="#B00000", weight="bold")
    figure.savefig(path, metadata={"Software": None})
    return path
