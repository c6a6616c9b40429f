"""Requests held and tokens/s for model x GPU x strategy x max_len: `kvlab sweep experiment=capacity`."""

from __future__ import annotations

from itertools import product

import readings as r
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvlab.harness.results import Run

METRICS = {"mean_batch_size": "mean batch", "tokens_per_s": "tokens/s"}
MARKERS = ("o", "s", "^", "D")
TEXT = """\
Mean batch: sequences that run, on average over the steps until no request waits any more. The requests are the
same in every line of a GPU and a model: a larger max_len changes only what is declared. In brackets: times
contiguous at the same max_len. Where tokens/s hardly differ, products are what takes the time, and more sequences
at once bring nothing; where requests soon stop waiting, as Yi-6B's do on 80 GB, memory is not the limit and the
mean batch says little."""


def make(runs: list[Run]) -> r.Page:
    title = "What a GPU holds, by strategy and max_len"
    return r.Page(title, f"{TEXT}\n\n{_table(runs)}", _figure(runs))


def _table(runs: list[Run]) -> str:
    lengths, head = r.axis(runs, "max_len"), ["model", "GPU", "strategy"]
    for name in ("batch", "tokens/s"):
        head += [f"{name}, max_len {length:,}" for length in lengths]
    body = []
    for model, gpu, name in product(r.axis(runs, "model"), r.axis(runs, "gpu"), r.placements(runs)):
        cells = []
        for metric, length in product(METRICS, lengths):
            here = {"model": model, "gpu": gpu, "max_len": length}
            value = r.metric(r.pick(runs, placement=name, **here), metric)
            rows = r.metric(r.pick(runs, placement="contiguous", **here), metric)
            times = "" if name == "contiguous" or value != value else f" ({value / rows:.1f}x)"
            cells.append(r.number(value, 1 if metric == "mean_batch_size" else 0) + times)
        body.append([model, gpu, name, *cells])
    return r.table(head, body, left=3)


def _figure(runs: list[Run]) -> Figure:
    models, names = r.axis(runs, "model"), r.placements(runs)
    figure = Figure(figsize=(8.0, 4.6))
    panels = figure.subplots(len(METRICS), len(models), sharey=True, squeeze=False)
    for (row, metric), (column, model) in product(enumerate(METRICS), enumerate(models)):
        panel = panels[row][column]
        _dots(panel, [run for run in runs if run.config["model"] == model], metric, names)
        r.plain_log(panel, "x")
        r.few_ticks(panel)
        panel.grid(axis="x", which="both", color="#E4E4E4", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.set_title(f"{model}, {METRICS[metric]}", size=8)
    figure.legend(handles=_handles(runs), loc="outside upper center", ncols=4, frameon=False)
    return figure


def _dots(panel: Axes, runs: list[Run], metric: str, names: list[str]) -> None:
    """A mark a run: filled and small for the shortest max_len, so that it stays visible inside a hollow one."""
    gpus, shortest = r.axis(runs, "gpu"), r.axis(runs, "max_len")[0]
    for run in sorted(runs, key=lambda run: -int(run.config["max_len"])):
        place = names.index(r.placement(run)) + 0.22 * (gpus.index(run.config["gpu"]) - (len(gpus) - 1) / 2)
        colour, marker = r.look(r.placement(run)).colour, MARKERS[gpus.index(run.config["gpu"])]
        face, size = (colour, 4) if run.config["max_len"] == shortest else ("white", 8)
        panel.plot(r.metric(run, metric), place, marker, markeredgecolor=colour, markerfacecolor=face, markersize=size)


def _handles(runs: list[Run]) -> list[Line2D]:
    ink = {"linestyle": "", "color": "#444444", "markersize": 6}
    gpus = [Line2D([], [], marker=MARKERS[i], label=gpu, **ink) for i, gpu in enumerate(r.axis(runs, "gpu"))]
    shortest, *longer = r.axis(runs, "max_len")
    filled = Line2D([], [], marker="o", label=f"filled: max_len {shortest:,}", **ink)
    hollow = [Line2D([], [], marker="o", markerfacecolor="white", label=f"hollow: {n:,}", **ink) for n in longer]
    return [*gpus, filled, *hollow]


if __name__ == "__main__":
    r.main("capacity", make)
