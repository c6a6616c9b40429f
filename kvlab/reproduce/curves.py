"""The PagedAttention paper's curves: mean normalized latency by rate, its own and ours, for each system of a panel.

Two servers of different speed are compared, so a rate is given as a share of what vLLM sustains on its own server.
SIMULATED; points are medians over the seeds, at shares of what a system sustains with the first of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from math import exp, log
from statistics import median
from typing import NamedTuple

from kvlab.reproduce import rates, serving, sosp23_more
from kvlab.reproduce.frame import HERE, Lab
from kvlab.reproduce.sosp23 import SYSTEMS
from kvlab.reproduce.sosp23_rates import TRACE_S, served

SHARES = (0.5, 0.75, 0.9, 1.0, 1.15, 1.4)
FURTHER, STEPS = 1.4, 8  # where none of those is far enough; so many times at most
Overrides = Callable[[str, int], list[str]]  # of a system and a seed


class Point(NamedTuple):
    rate: float  # requests/s
    latency: float  # s/token; of ours the median
    low: float
    high: float


class Curves(NamedTuple):
    """A panel: points of each system, the rates rising."""

    name: str
    title: str
    published: dict[str, list[Point]]
    ours: dict[str, list[Point]]
    trace_s: float  # of our arrivals


class Panel(NamedTuple):
    overrides: Overrides
    trace_s: float


def measure(lab: Lab, name: str) -> Curves:
    printed = json.loads((HERE / "published/sosp23_curves.json").read_text())[name]
    published = {
        system: [Point(rate, latency, latency, latency) for rate, latency in points]
        for system, points in printed["curves"].items()
    }
    with ExitStack() as files:
        panel = _chat(lab, files) if name == CHAT else PANELS[name]
        ours = {system: _curve(lab, panel, system) for system in published}
    return Curves(name, printed["title"], published, ours, panel.trace_s)


def _curve(lab: Lab, panel: Panel, system: str) -> list[Point]:
    whole = rates.sustained(lab, panel.overrides(system, lab.seeds[0]), panel.trace_s)
    points = [_point(lab, panel, system, share * whole) for share in SHARES]
    for _ in range(STEPS):  # seeds differ, and the median may cross later, or earlier
        if points[-1].latency < rates.ALLOWED:
            points.append(_point(lab, panel, system, FURTHER * points[-1].rate))
        if points[0].latency > rates.ALLOWED:
            points.insert(0, _point(lab, panel, system, points[0].rate / FURTHER))
    return points


def _point(lab: Lab, panel: Panel, system: str, rate: float) -> Point:
    values = [rates.latency(lab, panel.overrides(system, seed), rate, panel.trace_s) for seed in lab.seeds]
    return Point(rate, median(values), min(values), max(values))


def sustained(points: list[Point], allowed: float = rates.ALLOWED) -> float:
    """Requests/s at which a curve first is `allowed`, between two points in logs; ValueError: nowhere."""
    for below, above in pairwise(points):
        if below.latency <= allowed <= above.latency:
            part = (log(allowed) - log(below.latency)) / (log(above.latency) - log(below.latency))
            return exp(log(below.rate) + part * (log(above.rate) - log(below.rate)))
    raise ValueError(f"a curve that never crosses {allowed} s/token")


def _alpaca(answers: int) -> Panel:
    return Panel(
        lambda system, seed: [*served(system, "Alpaca", seed), f"workload.n={answers}"], TRACE_S["Alpaca"]
    )  # fmt: skip


def _chat(lab: Lab, files: ExitStack) -> Panel:
    """Its requests lie in files for as long."""
    requests = {seed: files.enter_context(serving.trace(sosp23_more.chats(lab, seed))) for seed in lab.seeds}
    return Panel(lambda system, seed: sosp23_more.chat(requests[seed], SYSTEMS[system], seed), sosp23_more.CHAT_S)


def _prefix(name: str) -> Panel:
    return Panel(
        lambda system, seed: [*sosp23_more.with_prefix(sosp23_more.PREFIXES[name], system), f"seed={seed}"],
        sosp23_more.PREFIX_S,
    )


CHAT = "fig17"
PANELS: dict[str, Panel] = {
    "fig12a": Panel(lambda system, seed: served(system, "ShareGPT", seed), TRACE_S["ShareGPT"]),
    "fig12d": _alpaca(1),
    "fig14a": _alpaca(2),
    "fig14b": _alpaca(4),
    "fig14c": _alpaca(6),
    "fig16a": _prefix("1-shot"),
    "fig16b": _prefix("5-shot"),
}
NAMES = (*PANELS, CHAT)
