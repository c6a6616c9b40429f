"""One long request among many short ones, and whom it harms: `kvlab sweep experiment=tenant`."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import readings as r
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvlab.harness.goodput import Served, served
from kvlab.harness.results import Run

COLOURS = ("#999999", "#E69F00", "#0072B2", "#D55E00")
TEXT = """\
The others are the same requests at the same times in every line, so that the lines differ in what the tenant does
to them. It comes when half of them have. Preempted: the others, each as often as it happened; elder ones had come
before the tenant, younger ones after it. Within the limits: of the others, first token within {ttft:g} s and
{tpot:g} s for each later one (slo.ttft_s, slo.tpot_s: assumptions). Who is preempted is the newest
(victim=newest). Who comes while a launch runs is counted as waiting from the next one on."""
HEAD = [
    "strategy", "chunk", "tenant's prompt", "preempted elders", "preempted younger", "tenant preempted",
    "tenant's first token, s", "others' first token p50, s", "p99, s", "most, s", "others within the limits, %",
    "recomputed tokens",
]  # fmt: skip


class Harm(NamedTuple):
    """A run, its requests, and which of them is the tenant."""

    run: Run
    requests: Served
    tenant: int

    @property
    def came_s(self) -> Any:
        """When the others came [N - 1], seconds after the tenant."""
        return np.delete(self.requests.arrival_N - self.requests.arrival_N[self.tenant], self.tenant)

    def others(self, name: str) -> Any:
        return np.delete(getattr(self.requests, name), self.tenant)


def make(runs: list[Run]) -> r.Page:
    axes = [r.axis(runs, key) for key in ("strategy", "engine.chunk", "workload.tenant_prompt_len")]
    harms = {key: _harm(runs, *key) for key in product(*axes)}
    limits = {key: runs[0].config[f"slo.{key}_s"] for key in ("ttft", "tpot")}
    body = [_row(*key, harm) for key, harm in harms.items()]
    text = f"{TEXT.format(**limits)}\n\n{r.table(HEAD, body, left=2)}"
    return r.Page("A tenant of 100,000 tokens among short requests", text, _figure(harms, *axes))


def _harm(runs: list[Run], strategy: str, chunk: int | None, length: int) -> Harm:
    run = r.pick(runs, strategy=strategy, engine__chunk=chunk, workload__tenant_prompt_len=length)
    assert run is not None
    return Harm(run, served(run.path), int(run.values["workload.tenant_id"]))


def _row(strategy: str, chunk: int | None, length: int, harm: Harm) -> list[str]:
    requests, tenant, run = harm.requests, harm.tenant, harm.run
    first = harm.others("ttft_s")
    good = np.delete(requests.within(run.config["slo.ttft_s"], run.config["slo.tpot_s"]), tenant)
    p50, p99, most = np.nanpercentile(first, (50, 99, 100))
    elders, younger = requests.preemptions_N[:tenant].sum(), requests.preemptions_N[tenant + 1 :].sum()
    return [
        strategy, "whole prompts" if chunk is None else f"{chunk:,}", f"{length:,}",
        r.number(elders), r.number(younger), r.number(requests.preemptions_N[tenant]),
        r.number(requests.ttft_s[tenant], 2), r.number(p50, 2), r.number(p99, 2), r.number(most, 2),
        r.number(100 * good.mean(), 1), r.number(r.metric(run, "recomputed_tokens")),
    ]  # fmt: skip


def _figure(harms: dict[Any, Harm], strategies: list[str], chunks: list[int | None], lengths: list[int]) -> Figure:
    """The first strategy's: first tokens of the others, and who ran and waited beside the longest tenant."""
    figure = Figure(figsize=(8.0, 5.0))
    panels = figure.subplots(len(chunks), 2, sharex=True, sharey="col", squeeze=False)
    for row, chunk in zip(panels, chunks, strict=True):
        shown = {length: harms[strategies[0], chunk, length] for length in lengths}
        how = "whole prompts" if chunk is None else f"chunks of {chunk:,}"
        _first_tokens(row[0], shown)
        row[0].set_title(f"{how}: others' first token, s")
        _crowd(row[1], shown[lengths[-1]])
        row[1].set_title(f"{how}: sequences, beside {lengths[-1]:,}")
    for panel in panels[-1]:
        panel.set_xlim(-10, 60)
        panel.set_xlabel("seconds after the tenant came")
    figure.legend(handles=_handles(lengths), loc="outside upper center", ncols=5, frameon=False)
    return figure


def _first_tokens(panel: Axes, shown: dict[int, Harm]) -> None:
    for colour, harm in zip(COLOURS, shown.values(), strict=False):
        first, again = harm.others("ttft_s"), harm.others("preemptions_N") > 0
        panel.plot(harm.came_s, first, ".", color=colour, markersize=3)
        panel.plot(harm.came_s[again], first[again], "x", color=colour, markersize=5)
    r.plain_log(panel, "y")
    panel.grid(color="#E4E4E4", linewidth=0.6)


def _crowd(panel: Axes, harm: Harm) -> None:
    steps, came = harm.run.steps, harm.requests.arrival_N[harm.tenant]
    end = np.asarray(steps["time_s"]) - came
    panel.step(end, steps["running"], where="pre", color="#332288", linestyle="-", label="running")
    panel.step(end, steps["waiting"], where="pre", color="#CC6677", linestyle="--", label="waiting")
    panel.legend(frameon=False, loc="upper left")
    panel.grid(color="#E4E4E4", linewidth=0.6)


def _handles(lengths: list[int]) -> list[Line2D]:
    tenants = [
        Line2D([], [], marker="o", markersize=4, linestyle="", color=colour, label=f"{length:,} tokens")
        for colour, length in zip(COLOURS, lengths, strict=False)
    ]
    return [*tenants, Line2D([], [], marker="x", linestyle="", color="#444444", label="preempted")]


if __name__ == "__main__":
    r.main("tenant", make)
