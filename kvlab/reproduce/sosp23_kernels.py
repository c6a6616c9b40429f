"""The PagedAttention paper's two microbenchmarks: attention over blocks, and copies of blocks to and from the host.

Both are calibrated on: shown beside the cost model, and counted nowhere.
"""

from __future__ import annotations

import numpy as np

from kvlab import simulate
from kvlab.cost.model import CostModel
from kvlab.moves import SwapIn, SwapOut
from kvlab.reproduce.frame import Found, Lab, Measure
from kvlab.reproduce.serving import SIMULATED
from kvlab.reproduce.sosp23 import POOL

CONTEXTS, BATCHES = (64, 128, 256), (8, 32)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SWAPPED = 512  # tokens: 16.1 ms at the largest blocks are 412 MB at 25.6 GB/s, and a token has 800 KiB
HOST = f"host_bytes={12 << 30}"


def fig18a(lab: Lab) -> dict[str, Found]:
    how = "seconds of attention of one more token each, over blocks of 16 and over rows, by the cost model (SIMULATED)"
    paged = _cost(lab, ["strategy=paged", "block_size=16", *SMALL])
    rows = _cost(lab, ["strategy=contiguous", *SMALL])
    return {
        f"batch {batch}, {context} tokens": Found([_token(paged, batch, context) / _token(rows, batch, context)], how)
        for batch in BATCHES
        for context in CONTEXTS
    }


SMALL = ["pool_bytes=8GiB"]


def _token(cost: CostModel, batch: int, context: int) -> float:
    """What a launch takes longer where each sequence has twice the tokens: the weights are read either way."""
    short, long = (float(cost.decode(batch, batch * tokens, 1)[0]) for tokens in (context, 2 * context))
    return long - short


def fig19a(lab: Lab) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for size in SIZES:
        cost = _cost(lab, ["strategy=paged", f"block_size={size}", *SMALL, HOST])
        places = range(0, SWAPPED, size)
        out = cost.moves([SwapOut(place, place, size) for place in places])
        back = cost.moves([SwapIn(place, place, size) for place in places])
        how = f"{SWAPPED} tokens, block by block, by the cost model (SIMULATED)"
        found[f"swap out and in, blocks of {size}"] = Found([1e3 * (out + back)], how)
    prompt = np.array([SWAPPED])
    seconds = cost.launch(prompt, prompt, 1)
    found["recompute, blocks of 16"] = Found([1e3 * seconds], f"a prompt of {SWAPPED} tokens (SIMULATED)")
    return found


def _cost(lab: Lab, overrides: list[str]) -> CostModel:
    return simulate.plan(lab.compose([*SIMULATED, *POOL, *overrides])).cost


FIGURES: dict[str, tuple[str, Measure]] = {
    "fig18a": ("cost model", fig18a),
    "fig19a": ("cost model", fig19a),
}
