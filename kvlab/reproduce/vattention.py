"""The vAttention paper's tables that are arithmetic, asked of our own memory, strategies and prices."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvlab.cost.nodes import Node
from kvlab.cost.prices import MovePrices, PagePrices
from kvlab.cost.rank import token_bytes
from kvlab.engine.capacity import page_group_tokens
from kvlab.model.shape import Shape
from kvlab.model.shapes import Published
from kvlab.reproduce.frame import Found, Lab, Measure
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Arrival, Memory

KB, MB = 1024, 1 << 20
PAGES = {"64 KB": 64 * KB, "128 KB": 128 * KB, "256 KB": 256 * KB, "2 MB": 2 * MB}
MODELS = ("Yi-6B", "Llama-3-8B", "Yi-34B")
RANKS = {"TP-1": 1, "TP-2": 2}


class Worker(NamedTuple):
    """One GPU's part of a model; its keys and values are of 16 bits."""

    shape: Shape
    ranks: int

    def memory(
        self, page: int, sliced: bool = False, max_len: int = 4096, max_seqs: int = 1, groups: int = 8
    ) -> Memory:
        """A pool of `groups` page groups, of which one is a page in every reservation."""
        each = page * (2 if sliced else 2 * self.shape.layers)
        token = token_bytes(self.shape, "float16", self.ranks)
        windows = (None,) * self.shape.layers
        return Memory(groups * each, token, max_len, max_seqs, max_len, windows, each, sliced)


def worker(model: str, ranks: int) -> Worker:
    return Worker(Published({"name": model}).shape, ranks)


def table8(lab: Lab) -> dict[str, Found]:
    how = "bytes of a page group over bytes of a token (kvlab.engine.capacity.page_group_tokens), from the shape"
    return {
        f"{model}, {tp}: {page}": Found([page_group_tokens(worker(model, ranks).memory(size))], how)
        for model in MODELS
        for tp, ranks in RANKS.items()
        for page, size in PAGES.items()
    }


def table10(lab: Lab) -> dict[str, Found]:
    how = "the same, of the layout per_layer and of sliced"
    return {
        f"{model}, {tp}: {cell}": Found([page_group_tokens(worker(model, ranks).memory(2 * MB, sliced))], how)
        for model in MODELS
        for tp, ranks in RANKS.items()
        for cell, sliced in (("without", False), ("with", True))
    }


def table3(lab: Lab) -> dict[str, Found]:
    prices = _prices(lab, "h200_measured", 2 * MB)
    calls = {
        "cuMemCreate": prices.create,
        "cuMemMap": prices.map,
        "cuMemSetAccess": prices.set_access,
        "cuMemUnmap": prices.unmap,
        "cuMemRelease": prices.release,
    }
    return {
        name: Found([1e6 * seconds], "medians on one H200, read from vmm=h200_measured")
        for name, seconds in calls.items()
    }


def table9(lab: Lab) -> dict[str, Found]:
    how = "page size over what the cost model takes to map a page and set access (vmm=a100_paper: Table 3), in GiB/s"
    found: dict[str, Found] = {}
    for page, size in PAGES.items():
        prices = _prices(lab, "a100_paper", size)
        each = size / (prices.map + prices.set_access) / (1 << 30)
        found |= {f"{tp}: {page}": Found([ranks * each], how) for tp, ranks in RANKS.items()}
    return found


def growth(lab: Lab) -> dict[str, Found]:
    """A sequence outgrows its page group: the strategy's own move, priced by the cost model."""
    strategy, group = VAttention(worker("Yi-34B", 2).memory(2 * MB)), 2048
    assert strategy.admit(Arrival(0, group, group, 2 * group, 2 * group), group), "one page group of eight was refused"
    strategy.drain()
    assert strategy.extend(0, group, group + 1), "the second page group of eight was refused"
    moves = strategy.drain()
    prices = MovePrices(_prices(lab, "a100_paper", 2 * MB), strategy, copy_call_s=0.0, copy_bytes_per_s=1.0)
    calls = prices.page_calls[0] * len(moves)
    how = "one token beyond a full page group in the strategy vattention, over 2 MB pages, priced with vmm=a100_paper"
    return {"driver calls": Found([float(calls)], how), "time": Found([1e3 * prices.seconds(moves)], how)}


def addresses(lab: Lab) -> dict[str, Found]:
    """Rows as the strategy lays them out; nothing is reserved by asking."""
    strategy = VAttention(worker("Yi-34B", 2).memory(64 * KB, max_len=200 * KB, max_seqs=500))
    buffers = 2 * len(strategy.memory.windows)
    row = strategy.row_slots * strategy.memory.token_bytes / buffers / MB
    buffer = row * strategy.memory.max_seqs / 1000
    how = "rows of the strategy vattention: row_slots x bytes of a token in one of {} buffers; MB: 2^20, GB: 1000 MB"
    values = {
        "one request in one buffer": row,
        "one buffer": buffer,
        "all buffers of a worker": buffers * buffer / 1000,
    }
    return {name: Found([value], how.format(buffers)) for name, value in values.items()}


def _prices(lab: Lab, vmm: str, page: int) -> PagePrices:
    node: dict[str, Any] = lab.compose(["executor=simulated", "model=yi_34b", "strategy=vattention", f"vmm={vmm}"])[
        "vmm"
    ]
    return PagePrices(Node("vmm", node), page)


FIGURES: dict[str, tuple[str, Measure]] = {
    "table8": ("arithmetic", table8),
    "table10": ("arithmetic", table10),
    "table9": ("arithmetic", table9),
    "table3": ("measured on a GPU", table3),
    "growth": ("arithmetic", growth),
    "addresses": ("arithmetic", addresses),
}
