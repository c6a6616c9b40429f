"""The papers whose tables are measured again, and how each figure is."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from kvlab.reproduce import sglang, sosp23, sosp23_kernels, sosp23_more, sosp23_rates, vattention, vattention_runs
from kvlab.reproduce.frame import Lab, Measure, Outcome, Paper

FIGURES: dict[str, dict[str, tuple[str, Measure]]] = {
    "sosp23": {**sosp23.FIGURES, **sosp23_rates.FIGURES, **sosp23_more.FIGURES, **sosp23_kernels.FIGURES},
    "sglang": sglang.FIGURES,
    "vattention": {**vattention.FIGURES, **vattention_runs.FIGURES},
}


class Reproduced(NamedTuple):
    paper: Paper
    outcomes: list[Outcome]


def reproduce(name: str, lab: Lab, figures: Collection[str], say: Callable[[str], None]) -> Reproduced:
    """Measure the figures named. A name that is not in FIGURES[name] raises KeyError."""
    paper, outcomes = Paper.load(name), []
    for figure in figures:
        kind, measure = FIGURES[name][figure]
        begin = time.monotonic()
        found = measure(lab)
        outcomes.append(paper.outcome(figure, kind, found, (time.monotonic() - begin) / 60))
        say(f"{name} {figure}: {outcomes[-1].verdict}, {outcomes[-1].minutes:.1f} minutes")
    return Reproduced(paper, outcomes)
