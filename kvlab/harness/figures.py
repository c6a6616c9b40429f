"""Figures from the rows of a table: where the pool's bytes were, and what that gave. Matplotlib is imported here only.

The same thing has the same colour in every figure; the colours stay apart for colour-blind readers
(Okabe-Ito for the parts of the pool, Tol's muted set for strategies).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from kvlab.engine.capacity import size_text
from kvlab.harness.groups import Row
from kvlab.harness.results import Run
from kvlab.harness.series import first_setting, one_seed, over_time

PARTS = {  # of the pool, in the order in which they are stacked: column of steps.csv -> name, colour
    "token_state": ("token state", "#0072B2"),
    "reservation": ("reservation", "#56B4E9"),
    "internal": ("internal", "#E69F00"),
    "cached": ("cached", "#009E73"),
    "external": ("external, free", "#D2D2D2"),
}
METRICS = {"token_state": "utilization"} | {part: f"waste.{part}" for part in PARTS if part != "token_state"}
STRATEGIES = {"contiguous": "#CC6677", "paged": "#332288", "vattention": "#44AA99"}
OTHERS = ("#DDCC77", "#882255", "#88CCEE", "#117733", "#AA4499", "#999933")
STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#666666", "axes.linewidth": 0.8,
    "xtick.color": "#333333", "ytick.color": "#333333", "figure.dpi": 200, "figure.constrained_layout.use": True,
}  # fmt: skip
DASHES = ("-", "--", ":", "-.")  # for several rows of one strategy
WIDTH = 8.0  # inches: 1,600 pixels, twice what a README shows
LINE, HANDLE = 116, 9  # characters of legend text that fit across, and that a legend's handle takes of them


def draw(rows: list[Row], directory: Path) -> tuple[list[Path], list[str]]:
    """Every figure the rows allow, as PNG files in `directory`, and a line on each thing left out."""
    rows = [row for row in rows if row.runs]
    if not rows:
        return [], ["No figure: no run finished."]
    directory.mkdir(parents=True, exist_ok=True)
    colours, paths = strategy_colours(rows), []
    with matplotlib.rc_context(STYLE):
        paths.append(_save(waste_bars(rows), directory / "waste.png"))
        paths.append(_save(throughput(rows, colours), directory / "throughput.png"))
        shown, notes = first_setting(rows)
        if shown:
            paths.append(_save(utilization(shown, colours), directory / "utilization.png"))
            paths.append(_save(memory_maps(shown), directory / "memory_maps.png"))
    return paths, notes


def strategy_colours(rows: list[Row]) -> dict[str, str]:
    """A colour for each strategy; the built-in ones always have theirs."""
    names = sorted({_strategy(row) for row in rows} - STRATEGIES.keys())
    return STRATEGIES | {name: OTHERS[i % len(OTHERS)] for i, name in enumerate(names)}


def waste_bars(rows: list[Row]) -> Figure:
    """A bar for each row, split as in Fig. 2 of the PagedAttention paper: medians over the seeds."""
    figure, axes = _bars(rows, panels=1)
    shares = {part: np.array([_median(row, METRICS[part]) for row in rows]) * 100 for part in PARTS}
    parts = [part for part in PARTS if part != "cached" or shares[part].any()]
    left, places = np.zeros(len(rows)), range(len(rows))
    for part in parts:
        name, colour = PARTS[part]
        axes[0].barh(places, shares[part], left=left, color=colour, label=name, height=0.7, edgecolor="white")
        for place, start, share in zip(places, left.tolist(), shares[part].tolist(), strict=True):
            if share >= 5:
                ink = "white" if part in ("token_state", "cached") else "#222222"
                axes[0].text(start + share / 2, place, f"{share:.1f}", ha="center", va="center", color=ink, size=8)
        left = left + shares[part]
    axes[0].set_xlim(0, 100)
    axes[0].xaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes[0].set_xlabel("share of the pool until no request waits any more (medians, which need not add up)")
    figure.legend(loc="outside upper center", ncols=len(parts), frameon=False, handlelength=1.0)
    return figure


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
                continue
            panel.barh(place, spread.median, color=colours[_strategy(row)], height=0.7)
            for colour, width in (("white", 3.0), ("#222222", 1.2)):  # legible on any bar
                panel.plot([spread.low, spread.high], [place, place], color=colour, linewidth=width)
            mark = _mark(row) if metric == "tokens_per_s" else ""
            panel.annotate(
                f"{spread.median:,.1f}{mark}", (spread.high, place), (4, 0), textcoords="offset points", va="center"
            )
        panel.margins(x=0.18)
        panel.set_xlim(left=0)
        panel.set_title(title)
    return figure


def utilization(rows: list[Row], colours: dict[str, str]) -> Figure:
    """What is held and what is stored, as shares of the pool over time, a line a row."""
    figure = Figure(figsize=(WIDTH, 4.2))
    panels = figure.subplots(2, 1, sharex=True)
    seen: Counter[str] = Counter()
    handles, last = [], 0.0
    runs = one_seed(rows)
    for row, run in zip(rows, runs, strict=True):
        strategy, (edges, shares) = _strategy(row), over_time(run)
        style: dict[str, Any] = {
            "color": colours[strategy],
            "linestyle": DASHES[seen[strategy] % len(DASHES)],
            "linewidth": 1.4,
        }
        seen[strategy] += 1
        panels[0].stairs(shares["held"], edges, baseline=None, clip_on=False, **style)
        panels[1].stairs(shares["token_state"], edges, baseline=None, **style)
        label = f"{row.short}: done at {edges[-1]:,.1f}{_unit(runs)}"
        handles.append(Line2D([], [], label=label, **style))
        last = max(last, edges[-1])
    for axes, title in zip(panels, ("held by live sequences", "token state: really stored"), strict=True):
        _share_axis(axes)
        axes.set_title(title)
        axes.set_xlim(0, last)
    panels[1].set_xlabel(_time_label(runs))
    figure.supylabel(f"share of the pool{_pool(runs)}", size=9)
    # Columns of equal width: as many as fit beside each other, or the outer ones would be cut off.
    widest = max(len(str(handle.get_label())) for handle in handles) + HANDLE
    figure.legend(handles=handles, loc="outside upper center", ncols=max(1, LINE // widest), frameon=False)
    return figure


def memory_maps(rows: list[Row]) -> Figure:
    """A panel for each row on one time axis: how the same bytes were divided, moment by moment."""
    figure = Figure(figsize=(WIDTH, 0.9 + 1.35 * len(rows)))
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    runs = one_seed(rows)
    maps = [over_time(run) for run in runs]
    parts = [part for part in PARTS if part != "cached" or any(shares[part].any() for _, shares in maps)]
    end = max(edges[-1] for edges, _ in maps)
    for axes, row, (edges, shares) in zip(panels, rows, maps, strict=True):
        base = np.zeros(len(edges) - 1)
        for part in parts:
            axes.stairs(base + shares[part], edges, baseline=base, fill=True, color=PARTS[part][1], linewidth=0)
            base = base + shares[part]
        _share_axis(axes)
        axes.set_xlim(0, end)
        axes.set_title(_map_title(row))
        if edges[-1] < 0.97 * end:
            axes.text(edges[-1], 0.5, f"  done at {edges[-1]:,.1f}{_unit(runs)}", va="center", color="#444444")
    panels[-1].set_xlabel(_time_label(runs))
    handles = [Patch(color=PARTS[part][1], label=PARTS[part][0]) for part in parts]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(parts), frameon=False, handlelength=1.0)
    figure.supylabel(f"share of the pool{_pool(runs)}", size=9)
    return figure


def _bars(rows: list[Row], panels: int) -> tuple[Figure, list[Axes]]:
    """Horizontal bars, so that a long label stays readable; the first row on top."""
    figure = Figure(figsize=(WIDTH, 0.9 + 0.36 * max(3, len(rows))))
    axes = list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])
    axes[0].set_yticks(range(len(rows)), [row.label for row in rows])
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    for panel in axes:
        panel.tick_params(axis="y", length=0)
        panel.spines["left"].set_visible(False)
    return figure, axes


def _share_axis(axes: Axes) -> None:
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def _map_title(row: Row) -> str:
    mark = _mark(row)
    facts = [
        words.format(spread.median)
        for metric, words in (("mean_batch_size", "mean batch {:,.1f}"), ("tokens_per_s", "{:,.1f} tokens/s" + mark))
        if (spread := row.spread(metric))
    ]
    medians = f" (medians, n = {len(row.runs)})" if len(row.runs) > 1 else ""
    return f"{row.short}: {', '.join(facts)}{medians}" if facts else row.short


def _mark(row: Row) -> str:
    """Behind a time that is not to be trusted, as in the table."""
    return "" if row.timed else " (*)"


def _time_label(runs: list[Run]) -> str:
    """Of which clock, and whose run."""
    seeds = {run.seed for run in runs}
    seed = f" (the run of seed {seeds.pop()})" if len(seeds) == 1 else " (runs of different seeds)"
    return ("seconds" if _unit(runs) else "steps") + seed


def _unit(runs: list[Run]) -> str:
    """Seconds of the wall's clock or a cost model's; the clock that counts steps has none."""
    return "" if any(run.config.get("engine.clock") == "steps" for run in runs) else " s"


def _pool(runs: list[Run]) -> str:
    pools = {run.values.get("capacity.pool_bytes") for run in runs}
    known = pools.pop() if len(pools) == 1 else None
    return f" ({size_text(known)})" if known else ""


def _median(row: Row, metric: str) -> float:
    spread = row.spread(metric)
    return spread.median if spread else 0.0


def _strategy(row: Row) -> str:
    return str(row.runs[0].config.get("strategy"))


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Software": None})
    return path
