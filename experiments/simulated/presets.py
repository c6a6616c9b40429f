"""Real systems' placement and scheduling on one GPU and one workload: `kvlab sweep experiment=presets`."""

from __future__ import annotations

from statistics import median

import readings as r
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvlab.harness.results import Run

SHARES = {
    "token state": "utilization", "reservation": "waste.reservation", "internal": "waste.internal",
    "cached": "waste.cached", "external": "waste.external",
}  # fmt: skip
COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#56B4E9", "#DDDDDD")
HATCHES = ("", "//", "xx", "..", "")
TEXT = """\
1,000 requests with the lengths of the PagedAttention paper's ShareGPT, 3 a second: more than any of these serves, so
that memory decides. Shares are of the pool, while requests waited; medians over the seeds, with the least and the
most of the batch and the rate. Most: preemptions of the request that had most. Nothing is shared in this workload, so
caches show their cost and no gain. What each preset sets and leaves out: [docs/presets.md](../../docs/presets.md)."""
HEAD = [
    "preset", "mean batch", "tokens/s", "token state %", "reservation %", "internal %", "cached %", "external %",
    "preemptions", "most",
]  # fmt: skip


def make(runs: list[Run]) -> r.Page:
    by_preset: dict[str, list[Run]] = {}
    for run in runs:
        by_preset.setdefault(str(run.config["preset"]), []).append(run)
    ordered = sorted(by_preset.items(), key=lambda item: middle(item[1], "mean_batch_size"))
    body = [row(preset, of) for preset, of in ordered]
    return r.Page("Presets of real systems", f"{TEXT}\n\n{r.table(HEAD, body, left=1)}", figure(dict(ordered)))


def row(preset: str, runs: list[Run]) -> list[str]:
    shares = [r.number(100 * middle(runs, share), 1) for share in SHARES.values()]
    return [
        preset, spread(runs, "mean_batch_size", 1), spread(runs, "tokens_per_s", 0), *shares,
        spread(runs, "num_preemptions", 0), r.number(max(r.metric(run, "most_preemptions") for run in runs)),
    ]  # fmt: skip


def middle(runs: list[Run], name: str) -> float:
    return median(r.metric(run, name) for run in runs)


def spread(runs: list[Run], name: str, digits: int) -> str:
    values = sorted(r.metric(run, name) for run in runs)
    texts = [r.number(value, digits) for value in (median(values), values[0], values[-1])]
    return texts[0] if texts[1] == texts[2] else f"{texts[0]} [{texts[1]}-{texts[2]}]"


def figure(by_preset: dict[str, list[Run]]) -> Figure:
    """Where the pool's bytes are, and how many sequences run, a line for each preset."""
    drawn = Figure(figsize=(8.0, 0.34 * len(by_preset) + 1.4))
    left, right = drawn.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _bars(left, by_preset)
    batches = [[r.metric(run, "mean_batch_size") for run in runs] for runs in by_preset.values()]
    for place, values in enumerate(batches):
        right.plot([min(values), max(values)], [place, place], color="#444444", linewidth=1)
        right.plot(median(values), place, "o", color="#0072B2", markersize=5)
    right.set_xlabel("mean batch, sequences")
    right.set_xlim(0, None)
    right.grid(axis="x", color="#E4E4E4", linewidth=0.6)
    drawn.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    return drawn


def _bars(panel: Axes, by_preset: dict[str, list[Run]]) -> None:
    starts = [0.0] * len(by_preset)
    for (name, share), colour, hatch in zip(SHARES.items(), COLOURS, HATCHES, strict=True):
        widths = [100 * middle(runs, share) for runs in by_preset.values()]
        panel.barh(
            list(by_preset), widths, left=starts, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4,
            label=name,
        )  # fmt: skip
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    panel.set_xlabel("share of the pool, %")
    panel.set_xlim(0, 100)


if __name__ == "__main__":
    r.main("presets", make)
