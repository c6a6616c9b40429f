"""Lengths as the PagedAttention paper's Fig. 11 draws them: ShareGPT and Alpaca, prompts and outputs.

A bar says how many lengths lie in it; within a bar all are equally likely. What prompt and output have to do with
each other the figure does not say: they are drawn apart.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate
from math import ceil
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from kvlab.workload.rows import Drawn

FILE = Path(__file__).parent / "figures" / "sosp23_fig11.json"


class Bars(NamedTuple):
    """Bar j holds the lengths from edges[j] to edges[j + 1] - 1; up_to[j]: its share and those before it, summed."""

    edges: list[int]
    up_to: list[int]

    def draw(self, rng: Random) -> int:
        # Built on random() alone, the one method whose sequence Python guarantees.
        bar = bisect(self.up_to, rng.random() * self.up_to[-1])
        first, beyond = self.edges[bar], self.edges[bar + 1]
        return first + int(rng.random() * (beyond - first))


def names() -> list[str]:
    return sorted(_figure()["workloads"])


def drawn(name: str, seed: int) -> Drawn:
    """Rows like those behind the figure."""
    figure = _figure()
    workload = figure["workloads"][name]
    about = {key: figure[key] for key in ("published", "licence", "attribution", "changes")}
    pairs = _pairs(bars(workload["prompt"]), bars(workload["output"]), figure["max_total"], Random(f"{seed} {name}"))
    return Drawn(pairs, {"synthetic": True, "source": workload["source"], **about})


def bars(part: dict[str, Any]) -> Bars:
    """{lo, width, per_100000}: bar j covers [lo + j x width, lo + (j + 1) x width)."""
    counts = part["per_100000"]
    edges = [ceil(round(part["lo"] + index * part["width"], 6)) for index in range(len(counts) + 1)]
    return Bars(edges, list(accumulate(counts)))


def _pairs(prompt: Bars, output: Bars, most: int, rng: Random) -> Iterator[tuple[int, int]]:
    while True:
        pair = prompt.draw(rng), output.draw(rng)
        if sum(pair) <= most:
            yield pair


def _figure() -> dict[str, Any]:
    figure: dict[str, Any] = json.loads(FILE.read_text())
    return figure
