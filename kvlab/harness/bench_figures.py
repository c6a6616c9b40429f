"""Figures of what kvlab itself costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from kvlab.harness.look import STYLE, WIDTH


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
            axes.set_ylim(bottom=0)
        figure.savefig(path, metadata={"Software": None})
