"""Figures over time: what was held and stored, and how the pool was divided, moment by moment, in runs of one seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from kvlab.engine.capacity import size_text
from kvlab.harness.groups import Row
from kvlab.harness.look import PARTS, RARE, TITLE, WIDTH, legend_columns, mark, strategy_of, wrapped
from kvlab.harness.results import Run
from kvlab.harness.series import Series, axis_end, one_seed, over_time, until

DASHES = ("-", "--", ":", "-.")  # for several rows of one strategy, beside their tints
WIDEST, NARROWEST = 2.6, 1.3  # the later line is the narrower, so that one on another hides nothing
HALO = withStroke(linewidth=2.5, foreground="white")


def utilization(rows: list[Row], colours: dict[str, str]) -> Figure:
    """What is held and what is stored, as shares of the pool over time, a line a row."""
    runs = one_seed(rows)
    lines = [over_time(run) for run in runs]
    end = axis_end([line.done for line in lines])
    styles = line_styles(rows, colours)
    labels = [
        wrapped(f"{row.short}: done at {moment(line.done, runs)}", TITLE) for row, line in zip(rows, lines, strict=True)
    ]
    columns = legend_columns(labels)
    figure = Figure(figsize=(WIDTH, 3.8 + 0.2 * len(rows) / columns))
    panels = figure.subplots(2, 1, sharex=True)
    for line, style in zip(lines, styles, strict=True):
        edges, shares = until(line, end)
        panels[0].plot(edges, _at_edges(shares["held"]), clip_on=False, drawstyle="steps-post", **style)
        panels[1].plot(edges, _at_edges(shares["token_state"]), drawstyle="steps-post", **style)
        if line.done > end:
            goes_on(panels[0], end, max(0.12, shares["held"][-1] - 0.12), moment(line.done, runs))
    for axes, title in zip(panels, ("held by live sequences", "token state: really stored"), strict=True):
        _share_axis(axes, end)
        axes.set_title(title)
    panels[1].set_xlabel(time_label(runs))
    figure.supylabel(f"share of the pool{_pool(runs)}", size=9)
    handles = [Line2D([], [], label=label, **style) for label, style in zip(labels, styles, strict=True)]
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
    return figure


def pool_over_time(rows: list[Row]) -> Figure:
    """A panel for each row on one time axis: how the same bytes were divided, moment by moment."""
    runs = one_seed(rows)
    maps = [over_time(run) for run in runs]
    parts = [part for part in PARTS if part not in RARE or any(line.shares[part].max() >= 0.0005 for line in maps)]
    end = axis_end([line.done for line in maps])
    figure, panels = stacked(rows, 1.5)
    for axes, row, run, line in zip(panels, rows, runs, maps, strict=True):
        edges, shares = until(line, end)
        _fill(axes, edges, shares, parts)
        _share_axis(axes, end)
        say_below_title(axes, facts(row, run, line, runs))
        if line.done > end:
            goes_on(axes, end, 0.5, moment(line.done, runs))
        if run.steps.get("prefill_tokens", [0])[0] and edges[1] - edges[0] > 0.05 * (end - edges[0]):
            axes.text(edges[0], 0.1, " prompts", va="center", size=8, path_effects=[HALO])
    panels[-1].set_xlabel(time_label(runs))
    legend_of_patches(figure, [Patch(color=PARTS[part][1], label=PARTS[part][0]) for part in parts])
    figure.supylabel(f"share of the pool{_pool(runs)}", size=9)
    return figure


def stacked(rows: list[Row], inches: float) -> tuple[Figure, list[Axes]]:
    """A panel for each row on one time axis, so many inches high, with its title and a line's room below that."""
    titles = [wrapped(row.short, TITLE) for row in rows]
    extra = max(title.count("\n") for title in titles)
    figure = Figure(figsize=(WIDTH, 1.1 + (inches + 0.16 * extra) * len(rows)))
    panels = list(figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0])
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, pad=17)
    return figure, panels


def say_below_title(axes: Axes, words: str) -> None:
    axes.annotate(words, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points")


def legend_of_patches(figure: Figure, patches: list[Patch]) -> None:
    columns = legend_columns([str(patch.get_label()) for patch in patches])
    figure.legend(handles=patches, loc="outside upper center", ncols=columns, frameon=False, handlelength=1.0)


def _fill(axes: Axes, edges: NDArray[np.float64], shares: dict[str, NDArray[np.float64]], parts: list[str]) -> None:
    """One part on the other."""
    base = np.zeros(len(edges) - 1)
    for part in parts:
        top = base + shares[part]
        axes.fill_between(edges, _at_edges(base), _at_edges(top), step="post", color=PARTS[part][1], linewidth=0)
        base = top


def _at_edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of steps, at the edge where each begins and at the last one's end; stairs() takes a second for each 10,000."""
    return np.append(values, values[-1])


def line_styles(rows: list[Row], colours: dict[str, str]) -> list[dict[str, Any]]:
    """Colour, dashes and width of each row's line."""
    widths = np.linspace(WIDEST, NARROWEST, len(rows)) if len(rows) > 1 else [1.4]
    names = [strategy_of(row) for row in rows]
    return [
        {"color": colours[row.short], "linestyle": DASHES[names[:i].count(names[i]) % len(DASHES)], "linewidth": width}
        for i, (row, width) in enumerate(zip(rows, widths, strict=True))
    ]


def _share_axis(axes: Axes, end: float) -> None:
    axes.set_xlim(0, end)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def goes_on(axes: Axes, end: float, height: float, moment: str) -> None:
    """Where the axis ends before the run does."""
    axes.text(end, height, f"to {moment} \u2192 ", ha="right", va="center", path_effects=[HALO])


def facts(row: Row, run: Run, line: Series, runs: list[Run]) -> str:
    """What is a median over the seeds, and what is of the one that is shown."""
    numbers = [
        words.format(spread.median)
        for metric, words in (
            ("mean_batch_size", "mean batch {:,.1f}"),
            ("tokens_per_s", "{:,.1f} tokens/s" + mark(row)),
        )
        if (spread := row.spread(metric))
    ]
    of = f" (medians of {len(row.runs)} seeds)" if len(row.runs) > 1 else ""
    shown = f"shown: seed {run.seed}, done at {moment(line.done, runs)}"
    return f"{', '.join(numbers)}{of}; {shown}" if numbers else shown


def moment(time: float, runs: list[Run]) -> str:
    return f"{time:,.1f} s" if in_seconds(runs) else f"step {time:,.0f}"


def time_label(runs: list[Run]) -> str:
    """Of which clock, and whose run."""
    seeds = {run.seed for run in runs}
    seed = f" (the run of seed {seeds.pop()})" if len(seeds) == 1 else " (runs of different seeds)"
    return ("seconds" if in_seconds(runs) else "steps") + seed


def in_seconds(runs: list[Run]) -> bool:
    """Of the wall's clock or a cost model's; the clock that counts steps has none."""
    return not any(run.config.get("engine.clock") == "steps" for run in runs)


def _pool(runs: list[Run]) -> str:
    pools = {run.values.get("capacity.pool_bytes") for run in runs}
    known = pools.pop() if len(pools) == 1 else None
    return f" ({size_text(known)})" if known else ""
