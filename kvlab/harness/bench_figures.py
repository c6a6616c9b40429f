"""Figures of what kvlab itself costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvlab.harness.look import STYLE, WIDTH
from kvlab.harness.ticks import plain_ticks


def simulator(rows: list[dict[str, Any]], peer: float, path: Path) -> None:
    """Requests a second and the most memory by the number of requests; `peer`: another simulator's rate."""
    count = [row["requests"] for row in rows]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.8))
        left, right = figure.subplots(1, 2)
        left.plot(count, [row["requests_per_cpu_s"] / 1e3 for row in rows], "o-", color="#0072B2")
        left.axhline(peer / 1e3, color="#949494", linestyle="--")
        left.annotate("Vidur 0.0.26", (count[0], peer / 1e3), (0, 3), textcoords="offset points", color="#666666")
        right.plot(count, [row["peak_bytes"] / 2**20 for row in rows], "o-", color="#D55E00")
        for axes, title in ((left, "thousand requests/s, one core"), (right, "most memory, MiB")):
            axes.set(xscale="log", title=title, xlabel="requests in the run")
            axes.margins(y=0.1)
            axes.set_ylim(bottom=0)
            plain_ticks(axes.xaxis)
        figure.savefig(path, metadata={"Software": None})


def bookkeeping(points: list[tuple[str, int, int, float, float]], few: int, path: Path) -> None:
    """Points (strategy, blocks, sequences, us of a step, us of it inside the strategy), of `few` sequences or more."""
    colors = {"paged": "#0072B2", "prefix": "#D55E00"}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.8))
        left, right = figure.subplots(1, 2)
        largest = max(point[1] for point in points)
        for name, color in colors.items():
            own = [point for point in points if point[0] == name]
            pools = [point for point in own if point[2] == few]
            running = [point for point in own if point[1] == largest]
            for axes, kept, at in ((left, pools, 1), (right, sorted(running, key=lambda point: point[2]), 2)):
                axes.plot([point[at] for point in kept], [point[3] for point in kept], "o-", color=color, label=name)
                axes.plot([point[at] for point in kept], [point[4] for point in kept], "o:", color=color)
        left.set(xscale="log", xlabel="blocks of the pool", title=f"us a step, {few} sequences")
        right.set(xlabel="sequences running", title="us a step")
        left.set_ylim(bottom=0)
        plain_ticks(left.xaxis)
        handles = [Line2D([], [], color=color, marker="o", label=name) for name, color in colors.items()]
        handles.append(Line2D([], [], color="#333333", linestyle="-", label="whole step"))
        handles.append(Line2D([], [], color="#333333", linestyle=":", label="of it inside the strategy"))
        right.legend(handles=handles, frameon=False)
        figure.savefig(path, metadata={"Date": None})
