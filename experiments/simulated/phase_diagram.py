"""Which strategy wins, and by how much, over length, variance, shared share and pool: `experiment=phase_diagram`."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import readings as r
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from kvlab.engine.capacity import size_text
from kvlab.harness.results import Run

KEYS = ("cost.kernel", "pool_bytes", "workload.shared_prefix", "workload.mean", "workload.sigma")
TIE = 0.01
FULL = 0.25  # the margin from which on a cell has the winner's full colour
TEXT = """\
A cell is won by the strategy with most output tokens/s on the same requests; the margin is over the second. Under
{tie:.0%} it is a tie: in grey, with both names. Mean and sigma are those of the lognormal total length, half of it
prompt, capped at max_len; shared: the share of each prompt that all begin with. Kernel: whose attention over
blocks of 16 paged and prefix run (cost.kernel), by ratios that the vAttention paper published: flashinfer decodes
1.15 times as long as FlashAttention-2 over rows, vllm_0_2 2.12 times; contiguous and vattention run over rows.
Each cell is one seed: a few percent may be the draw's. What a prefix cache's hashing costs on the CPU is not in
the model, so that prefix never loses to paged."""


class Cell(NamedTuple):
    """tokens/s of each strategy, best first."""

    ranked: list[tuple[str, float]]

    @property
    def margin(self) -> float:
        return self.ranked[0][1] / self.ranked[1][1] - 1

    @property
    def tied(self) -> bool:
        return self.margin < TIE


def make(runs: list[Run]) -> r.Page:
    axes = [r.axis(runs, key) for key in KEYS]
    cells = {place: _cell(runs, place) for place in product(*axes)}
    text = f"{TEXT.format(tie=TIE)}\n\n{_counts(cells)}\n\n{_table(cells, r.axis(runs, 'strategy'))}"
    return r.Page("Which strategy wins where", text, _figure(cells, axes))


def _cell(runs: list[Run], place: tuple[Any, ...]) -> Cell:
    here = [run for run in runs if tuple(run.config[key] for key in KEYS) == place and run.status == "ok"]
    rates = sorted(((r.metric(run, "tokens_per_s"), str(run.config["strategy"])) for run in here), reverse=True)
    return Cell([(name, rate) for rate, name in rates])


def _counts(cells: dict[Any, Cell]) -> str:
    won = [cell.ranked[0][0] for cell in cells.values() if not cell.tied]
    each = ", ".join(f"{name} {won.count(name)}" for name in sorted(set(won), key=won.count, reverse=True))
    return f"Of {len(cells)} cells: {each}, ties {len(cells) - len(won)}."


def _table(cells: dict[Any, Cell], names: list[str]) -> str:
    head = [
        "kernel",
        "pool",
        "shared",
        "mean",
        "sigma",
        "winner",
        "margin",
        "second",
        *(f"{name}, tokens/s" for name in names),
    ]
    body = []
    for (kernel, pool, shared, mean, sigma), cell in cells.items():
        rates = dict(cell.ranked)
        winner = f"tie: {cell.ranked[0][0]}" if cell.tied else cell.ranked[0][0]
        body.append(
            [kernel, size_text(pool), f"{shared:g}", f"{mean:,}", f"{sigma:g}", winner, f"{100 * cell.margin:.1f} %",
             cell.ranked[1][0], *(r.number(rates.get(name, float("nan"))) for name in names)]
        )  # fmt: skip
    return r.table(head, body, left=6)


def _figure(cells: dict[Any, Cell], axes: list[list[Any]]) -> Figure:
    kernels, pools, shares, means, sigmas = axes
    settings = list(product(kernels, pools))
    figure = Figure(figsize=(8.0, 1.45 * len(settings) + 0.8))
    panels = figure.subplots(len(settings), len(shares), sharex=True, sharey=True, squeeze=False)
    for (row, (kernel, pool)), (column, share) in product(enumerate(settings), enumerate(shares)):
        panel = panels[row][column]
        for (x, mean), (y, sigma) in product(enumerate(means), enumerate(sigmas)):
            _draw(panel, x, y, cells[kernel, pool, share, mean, sigma])
        panel.set(xlim=(-0.5, len(means) - 0.5), ylim=(-0.5, len(sigmas) - 0.5))
        panel.set_xticks(range(len(means)), [f"{mean:,}" for mean in means])
        panel.set_yticks(range(len(sigmas)), [f"{sigma:g}" for sigma in sigmas])
        panel.tick_params(length=0)
        panel.set_title(f"{kernel}, pool {size_text(pool)}, shared {share:g}")
    figure.supxlabel("mean length, tokens", size=9)
    figure.supylabel("sigma: how much lengths vary", size=9)
    names = sorted({name for cell in cells.values() for name, _ in cell.ranked})
    handles = [Patch(color=r.look(name).colour, label=_short(name)) for name in names]
    tie = Patch(facecolor="#E4E4E4", edgecolor="#888888", hatch="///", label=f"tie (under {TIE:.0%})")
    figure.legend(handles=[*handles, tie], loc="outside upper center", ncols=5, frameon=False)
    return figure


def _draw(panel: Axes, x: int, y: int, cell: Cell) -> None:
    """The winner's colour, the paler the closer the second."""
    first, second = cell.ranked[0][0], cell.ranked[1][0]
    if cell.tied:
        style: dict[str, Any] = {"facecolor": "#E4E4E4", "edgecolor": "#AAAAAA", "hatch": "///", "linewidth": 0}
        words, ink = f"{_short(first)}\n= {_short(second)}", "#222222"
    else:
        strength = 0.35 + 0.65 * min(1.0, cell.margin / FULL)
        red, green, blue = (1 - strength * (1 - part) for part in to_rgb(r.look(first).colour))
        style = {"facecolor": (red, green, blue), "linewidth": 0}
        words = f"{_short(first)}\n+{100 * cell.margin:.0f} %"
        ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "#222222"
    panel.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, **style))
    box = {"facecolor": "#E4E4E4", "edgecolor": "none", "pad": 1} if cell.tied else None
    panel.text(x, y, words, ha="center", va="center", color=ink, size=8, bbox=box)


def _short(name: str) -> str:
    return name.partition("_")[0]


if __name__ == "__main__":
    r.main("phase_diagram", make)
