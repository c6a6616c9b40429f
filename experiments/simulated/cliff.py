"""Throughput, goodput, waiting and preemptions against load: `kvlab sweep experiment=cliff`."""

from __future__ import annotations

import readings as r
from matplotlib.figure import Figure

from kvlab.harness.goodput import goodput
from kvlab.harness.results import Run

COLUMNS = {
    "goodput": "goodput, requests/s",
    "within": "within both limits, %",
    "tokens_per_s": "output tokens/s",
    "ttft_s.p50": "time to first token, p50, s",
    "tpot_s.p99": "time per output token, p99, s",
    "preemptions": "preemptions per 100 requests",
}
DIGITS = {"goodput": 2, "within": 1, "tokens_per_s": 0, "ttft_s.p50": 2, "tpot_s.p99": 3, "preemptions": 1}
SHOWN = ("goodput", "ttft_s.p50", "tokens_per_s", "preemptions")
TEXT = """\
Goodput: requests that finished with a first token within {ttft:g} s of their arrival and {tpot:g} s for each later
token on average, by the second in which requests came (requests.csv; the limits are slo.ttft_s and slo.tpot_s).
Both limits are assumptions. buddy reserves each request's true length (forecast=oracle). The draw of arrivals is a
little faster than its rate, so that goodput may lie above the load. Behind the edge the queue grows for as long as
requests come, so that the share within the limits falls with the length of the run: {requests:,} requests here.
The last line of each strategy, `edge`, is the highest load at which 90 % kept within them."""


def make(runs: list[Run]) -> r.Page:
    rates, names = [float(rate) for rate in r.axis(runs, "workload.rate")], r.placements(runs)
    found = {name: [_values(r.pick(runs, placement=name, workload__rate=rate)) for rate in rates] for name in names}
    limits = {key: runs[0].config[f"slo.{key}_s"] for key in ("ttft", "tpot")}
    text = TEXT.format(**limits, requests=runs[0].values["num_requests"])
    table = r.table(["strategy", "load, requests/s", *COLUMNS.values()], _body(rates, found))
    return r.Page("The edge of an overloaded server", f"{text}\n\n{table}", _figure(rates, found))


def _values(run: Run | None) -> dict[str, float]:
    if run is None or run.status != "ok":
        return dict.fromkeys(COLUMNS, float("nan"))
    good = goodput(run)
    each = {"goodput": good.per_s, "within": 100 * good.share}
    each["preemptions"] = 100 * r.metric(run, "num_preemptions") / r.metric(run, "num_requests")
    return {name: each[name] if name in each else r.metric(run, name) for name in COLUMNS}


def _body(rates: list[float], found: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    body = []
    for name, rows in found.items():
        body += [
            [name, f"{rate:g}", *(r.number(row[column], DIGITS[column]) for column in COLUMNS)]
            for rate, row in zip(rates, rows, strict=True)
        ]
        kept = [rate for rate, row in zip(rates, rows, strict=True) if row["within"] >= 90]
        body.append([f"{name}: edge", f"{max(kept):g}" if kept else "none", *["" for _ in COLUMNS]])
    return body


def _figure(rates: list[float], found: dict[str, list[dict[str, float]]]) -> Figure:
    figure = Figure(figsize=(8.0, 5.2))
    panels = dict(zip(SHOWN, figure.subplots(2, 2, sharex=True).flat, strict=True))
    panels["goodput"].plot(rates, rates, color="#999999", linewidth=1, linestyle="-", label="all that come")
    for column, panel in panels.items():
        for name, rows in found.items():
            r.line(panel, name, rates, [row[column] for row in rows])
        panel.set_title(COLUMNS[column])
        panel.grid(color="#E4E4E4", linewidth=0.6)
        panel.set_xlim(left=0)
    r.plain_log(panels["ttft_s.p50"], "y")
    best = max(row["goodput"] for rows in found.values() for row in rows)
    panels["goodput"].set_ylim(0, 1.25 * best)
    for column in ("tokens_per_s", "preemptions"):
        panels[column].set_ylim(bottom=0)
        panels[column].set_xlabel("load, requests/s")
    r.legend(figure, panels["goodput"], 5)
    return figure


if __name__ == "__main__":
    r.main("cliff", make)
