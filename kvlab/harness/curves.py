"""Latencies: how many requests waited how long, and how that grows with the rate at which they come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from kvlab.errors import UsageError
from kvlab.harness.goodput import Served, served
from kvlab.harness.groups import Row
from kvlab.harness.look import MARKERS, TITLE, WIDTH, legend_columns, mark, wrapped
from kvlab.harness.ticks import plain_ticks
from kvlab.harness.timelines import in_seconds, line_styles

RATE = "workload.rate"
CURVES = (  # metric, heading; of the figure over rates
    ("normalized_latency_s.mean", "mean normalised latency, s/token"),
    ("tokens_per_s", "output tokens/s"),
)


def latencies(rows: list[Row], colours: dict[str, str]) -> Figure | None:
    """Distributions over the finished requests of all seeds, a line a row; None where nobody left requests."""
    told = [(row, requests) for row in rows if (requests := _served(row))]
    if not told:
        return None
    styles = line_styles([row for row, _ in told], colours)
    labels = [wrapped(row.short + mark(row), TITLE) for row, _ in told]
    columns = legend_columns(labels)
    figure = Figure(figsize=(WIDTH, 2.7 + 0.2 * len(told) / columns))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (title, of) in zip(panels, DISTRIBUTIONS.items(), strict=True):
        values = [np.concatenate(list(map(of, requests))) for _, requests in told]
        _distributions(axes, values, styles)
        axes.set_title(title)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    unit = "seconds" if in_seconds([run for row, _ in told for run in row.runs]) else "steps"
    figure.supxlabel(f"{unit}; the requests of all seeds that finished", size=9)
    panels[0].set_ylabel("share of requests that took no longer")
    handles = [Line2D([], [], label=label, **style) for label, style in zip(labels, styles, strict=True)]
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
    return figure


def over_rates(rows: list[Row], colours: dict[str, str]) -> tuple[Figure | None, list[str]]:
    """Medians over the seeds at each rate, a line for each way of managing memory; None where rates were not varied.

    Of several settings beside the rate the first; the notes say so.
    """
    settings: dict[str, list[Row]] = {}
    for row in rows:
        if row.key.get(RATE) is not None:
            settings.setdefault(_without_rate(row).setting, []).append(row)
    if not settings:
        return None, []
    name, shown = next(iter(settings.items()))
    notes = [f"The figure over rates shows {name}, one of {len(settings)} settings."] if len(settings) > 1 else []
    lines: dict[str, list[Row]] = {}
    for row in sorted(shown, key=lambda row: float(row.key[RATE])):
        lines.setdefault(row.short, []).append(row)
    return _rates_figure(lines, colours), notes


def _rates_figure(lines: dict[str, list[Row]], colours: dict[str, str]) -> Figure:
    """A panel for each of CURVES; the rows of a line by their rate."""
    labels = [short + ("" if all(row.timed for row in line) else " (*)") for short, line in lines.items()]
    columns = legend_columns(labels)
    figure = Figure(figsize=(WIDTH, 2.9 + 0.2 * len(lines) / columns))
    panels = figure.subplots(1, len(CURVES))
    markers = [MARKERS[index % len(MARKERS)] for index in range(len(lines))]
    for axes, (metric, title) in zip(panels, CURVES, strict=True):
        for (short, line), marker in zip(lines.items(), markers, strict=True):
            _curve(axes, line, metric, colours[short], marker)
        axes.set_title(title)
        axes.set_xlim(left=0)
    panels[0].set_yscale("log")
    plain_ticks(panels[0].yaxis)
    panels[1].set_ylim(bottom=0)
    figure.supxlabel("requests that come in a second; line: median over the seeds, bar: least to most", size=9)
    handles = [
        Line2D([], [], label=label, color=colours[short], marker=marker, markersize=4)
        for label, short, marker in zip(labels, lines, markers, strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
    return figure


def _curve(axes: Axes, line: list[Row], metric: str, colour: str, marker: str) -> None:
    spreads = [(float(row.key[RATE]), spread) for row in line if (spread := row.spread(metric))]
    if not spreads:
        return
    rates, middles = [rate for rate, _ in spreads], [spread.median for _, spread in spreads]
    apart = [[s.median - s.low for _, s in spreads], [s.high - s.median for _, s in spreads]]
    axes.errorbar(rates, middles, apart, color=colour, marker=marker, markersize=4, linewidth=1.4, elinewidth=1)


def _without_rate(row: Row) -> Row:
    return replace(row, key={key: value for key, value in row.key.items() if key != RATE})


def _served(row: Row) -> list[Served]:
    """Of each run that left its requests."""
    found = []
    for run in row.runs:
        try:
            found.append(served(run.path))
        except (UsageError, ValueError, KeyError):  # none there, or not whole
            continue
    return [requests for requests in found if np.isfinite(requests.finish_N).any()]


def _ttft_s(requests: Served) -> NDArray[np.float64]:
    """Once for a request, however many sequences it has."""
    eldest_N: NDArray[np.bool_] = np.isfinite(requests.finish_N) & (requests.branch_N == 0)
    return requests.ttft_s[eldest_N]


def _tpot_s(requests: Served) -> NDArray[np.float64]:
    several_N: NDArray[np.bool_] = np.isfinite(requests.finish_N) & (requests.output_N > 1)
    return requests.tpot_s[several_N]


def _distributions(axes: Axes, values: list[NDArray[np.float64]], styles: list[dict[str, Any]]) -> None:
    """On a logarithmic axis where they lie far apart."""
    for value_N, style in zip(values, styles, strict=True):
        if len(value_N):
            axes.ecdf(value_N, **style)
    all_N = np.concatenate(values)
    positive_N = all_N[all_N > 0]
    if len(positive_N) and positive_N.max() > 10 * positive_N.min():
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)


DISTRIBUTIONS = {"time to first token": _ttft_s, "time per output token": _tpot_s}
