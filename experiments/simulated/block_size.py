"""What a larger block wastes, and what a smaller one costs: `kvlab sweep experiment=block_size`."""

from __future__ import annotations

import readings as r
from matplotlib.figure import Figure

from kvlab.harness.results import Run

TEXT = """\
Waste: share of the pool that live sequences hold and that stores no token (reservation and internal), paged. Hit
rate: of the prompts' tokens, found in the cache, prefix; half of each prompt is common to all. Tokens/s under two
published ratios of attention over blocks to attention over rows: flash_attn knows blocks of 256 alone and takes
its 1.005 for all; vllm_0_2 knows 16 to 128 and takes the nearest beyond them. What a block costs in bookkeeping on
the CPU is not in the model (experiments/bookkeeping.md measures it)."""


def make(runs: list[Run]) -> r.Page:
    sizes = r.axis(runs, "block_size")
    lines = {
        (strategy, kernel): [r.pick(runs, strategy=strategy, cost__kernel=kernel, block_size=size) for size in sizes]
        for strategy in r.axis(runs, "strategy")
        for kernel in r.axis(runs, "cost.kernel")
    }
    first = r.axis(runs, "cost.kernel")[0]
    waste = [
        100 * (r.metric(run, "waste.internal") + r.metric(run, "waste.reservation")) for run in lines["paged", first]
    ]
    hits = [100 * r.metric(run, "prefix_hit_rate") for run in lines["prefix", first]]
    rates = {key: [r.metric(run, "tokens_per_s") for run in row] for key, row in lines.items()}
    head = ["block size", "waste, %", "hit rate, %", *(f"{strategy}, {kernel}, tokens/s" for strategy, kernel in rates)]
    body = [
        [str(size), f"{waste[i]:.2f}", f"{hits[i]:.1f}", *(r.number(row[i]) for row in rates.values())]
        for i, size in enumerate(sizes)
    ]
    figure = _figure(sizes, waste, hits, rates)
    return r.Page("Block size: waste, hits and tokens/s", f"{TEXT}\n\n{r.table(head, body)}", figure)


def _figure(
    sizes: list[int], waste: list[float], hits: list[float], rates: dict[tuple[str, str], list[float]]
) -> Figure:
    figure = Figure(figsize=(8.0, 3.2))
    left, middle, right = figure.subplots(1, 3)
    r.line(left, "paged", sizes, waste)
    left.set_title("waste, % of the pool")
    r.line(middle, "prefix", sizes, hits)
    middle.set_title("hit rate, % of prompts")
    for (strategy, kernel), row in rates.items():
        colour, marker, _ = r.look(strategy)
        hollow = "white" if kernel != "flash_attn" else colour
        style = {"marker": marker, "markerfacecolor": hollow, "linestyle": "-" if kernel == "flash_attn" else ":"}
        right.plot(sizes, row, color=colour, markersize=5, label=f"{strategy}, {kernel}", **style)
    right.set_title("output tokens/s")
    for panel in (left, middle, right):
        r.powers(panel, sizes)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("block size, tokens")
        panel.grid(color="#E4E4E4", linewidth=0.6)
    r.legend(figure, right, 4)
    return figure


if __name__ == "__main__":
    r.main("block_size", make)
