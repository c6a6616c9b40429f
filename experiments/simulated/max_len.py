"""What declaring a larger max_len costs each strategy, requests being the same: `kvlab sweep experiment=max_len`."""

from __future__ import annotations

import readings as r
from matplotlib.figure import Figure

from kvlab.harness.results import Run

METRICS = {"mean_batch_size": "mean batch, sequences", "tokens_per_s": "output tokens/s"}
TEXT = """\
No request has more than 2,048 tokens; max_len alone changes, and with it what clients declare. buddy reserves the
next power of two of the output (forecast=pow2), at most what is declared. In brackets: of the same strategy's
figure at the shortest max_len."""


def make(runs: list[Run]) -> r.Page:
    lengths, names = r.axis(runs, "max_len"), r.placements(runs)
    found = {
        (name, metric): [r.metric(r.pick(runs, placement=name, max_len=length), metric) for length in lengths]
        for name in names
        for metric in METRICS
    }
    tables = [_table(metric, lengths, {name: found[name, metric] for name in names}) for metric in METRICS]
    figure = Figure(figsize=(8.0, 3.4))
    for panel, metric in zip(figure.subplots(1, 2), METRICS, strict=True):
        for name in names:
            r.line(panel, name, lengths, found[name, metric])
        r.powers(panel, lengths)
        panel.set_ylim(bottom=0)
        panel.set_title(METRICS[metric])
        panel.set_xlabel("max_len, tokens")
        panel.grid(color="#E4E4E4", linewidth=0.6)
    r.legend(figure, figure.axes[0], 3)
    return r.Page("What a larger max_len costs", "\n\n".join([TEXT, *tables]), figure)


def _table(metric: str, lengths: list[int], values: dict[str, list[float]]) -> str:
    digits = 1 if metric == "mean_batch_size" else 0
    body = [
        [name, *(f"{r.number(value, digits)} ({100 * value / row[0]:.0f} %)" for value in row)]
        for name, row in values.items()
    ]
    return r.table([METRICS[metric], *(f"{length:,}" for length in lengths)], body)


if __name__ == "__main__":
    r.main("max_len", make)
