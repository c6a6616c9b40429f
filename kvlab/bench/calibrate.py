"""From this machine's measured parts, and some real launches, to the constants of a cost model.

The parts (kvlab/bench/machine.py) say what products, attention and moves take alone; what a launch of the real engine
takes beyond them is fitted (kvlab/bench/fit.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kvlab.bench import machine
from kvlab.bench.fit import TERMS, fit, observe
from kvlab.cost.rank import VALUE_BYTES, Rank
from kvlab.engine.kernels import build_kernels
from kvlab.model.llama import Llama

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
BLOCK_SIZES = (1, 16, 64)
PROMPTS = (256, 768)  # tokens
PAGE_BYTES = (65536, 262144, 2097152)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Calibration:
    """The nodes gpu, vmm and cost of a configuration, and how far the fit is off."""

    gpu: dict[str, Any]
    vmm: dict[str, Any]
    cost: dict[str, Any]
    errors: dict[str, float]  # shares of a launch's seconds


def calibrate(config: dict[str, Any], model: Llama, memory_bytes: int, say: Say) -> Calibration:
    """`config`: a resolved configuration of a real run, whose dtype, attention, strategy and threads count."""
    if threads := config["engine"].get("threads"):
        torch.set_num_threads(threads)
    say("products of matrices")
    gpu = _gpu(config, model, memory_bytes)
    say("attention and copies")
    cost = _cost(config, model, gpu)
    say("virtual memory")
    vmm = _vmm()
    say("launches of the engine")
    launches = observe(config, model)
    terms, errors = fit({**config, "gpu": gpu, "vmm": vmm, "cost": cost}, model, launches)
    cost["overhead"] = {f"{name}_us": _rounded(value * 1e6) for name, value in terms.items()}
    return Calibration(gpu, vmm, cost, errors)


def _rounded(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")


def _gpu(config: dict[str, Any], model: Llama, memory_bytes: int) -> dict[str, Any]:
    rank, times = Rank.of(model.shape, 1), machine.products(model, ROWS)
    bits = 8 * VALUE_BYTES[config["dtype"]]
    peak = max(2 * rank.body_weights * rows / body for rows, (body, _) in zip(ROWS, times, strict=True))
    return {
        "memory_gib": _rounded(memory_bytes / 2**30),
        "bandwidth_gb_s": _rounded(machine.read_bytes_per_s() / 1e9),
        "tflops_16bit": None,
        "tflops_32bit": None,
        f"tflops_{bits}bit": _rounded(peak / 1e12),
        "link_gb_s": None,
        "link_latency_us": None,
        "host_link_gb_s": None,
        "products": {
            "dtype": config["dtype"],
            "rows": list(ROWS),
            "body_ps_per_weight": [_rounded(body / rank.body_weights * 1e12) for body, _ in times],
            "head_ps_per_weight": [_rounded(head / rank.head_weights * 1e12) for _, head in times],
        },
    }


class Timed(NamedTuple):
    """Seconds of what the engine's kernels do on this machine; None among block sizes: rows."""

    decode: dict[int | None, float]  # a batch's single queries over `stored` bytes
    stored: float
    rows: list[float]  # of each of PROMPTS, over rows
    blocks: list[float]  # and over blocks
    copy_call: float
    copy_token: float


def _timed(config: dict[str, Any], model: Llama) -> Timed:
    with ExitStack() as stack:
        place = machine.attended(stack, model, build_kernels(config["attention"]), 16, PROMPTS[-1])
        decode = {size: place.decode(size) for size in (None, *BLOCK_SIZES)}
        rows, blocks = ([place.prompt(length, size) for length in PROMPTS] for size in (None, BLOCK_SIZES[1]))
        stored = place.batch * place.length * model.shape.token_bytes(config["dtype"])
        return Timed(decode, stored, rows, blocks, *machine.copies(place))


def _cost(config: dict[str, Any], model: Llama, gpu: dict[str, Any]) -> dict[str, Any]:
    timed = _timed(config, model)
    return {
        "efficiency": _efficiency(timed, config, model, gpu),
        "query_tile": PROMPTS[-1],
        "memory_fraction": 0.9,
        "activation_tokens": 0,
        "overlap_mapping": True,
        "copy_call_us": _rounded(timed.copy_call * 1e6),
        "overhead": {f"{name}_us": 0.0 for name in TERMS},
        "kernel": None,
        "paged_factor": None,
        "kernels": {
            str(config["attention"]["name"]): {
                "prefill_context": list(PROMPTS),
                "prefill_factor": [_rounded(b / a) for a, b in zip(timed.rows, timed.blocks, strict=True)],
                "decode_block_size": list(BLOCK_SIZES),
                "decode_factor": [_rounded(timed.decode[size] / timed.decode[None]) for size in BLOCK_SIZES],
            }
        },
    }


def _efficiency(timed: Timed, config: dict[str, Any], model: Llama, gpu: dict[str, Any]) -> dict[str, float]:
    """Shares of the machine's bandwidth and arithmetic that are reached."""
    shape, bandwidth = model.shape, gpu["bandwidth_gb_s"] * 1e9
    peak = next(gpu[key] for key in ("tflops_16bit", "tflops_32bit") if gpu[key]) * 1e12
    seen = [4 * shape.layers * shape.q_heads * shape.head_dim * n * (n + 1) / 2 for n in PROMPTS]
    between = max(timed.rows[1] - timed.rows[0], 1e-9)  # what prompts cost apart is in the overhead
    return {
        "weights": 1.0,
        "products": 1.0,
        "decode_attention": _share(timed.stored / timed.decode[None] / bandwidth),
        "decode_operations": 1.0,
        "prefill_attention": _share((seen[1] - seen[0]) / between / peak),
        "copy": _share(2 * shape.token_bytes(config["dtype"]) / max(timed.copy_token, 1e-12) / bandwidth),
    }


def _share(value: float) -> float:
    """At most 1: caches may be quicker than memory."""
    return min(1.0, _rounded(value))


def _vmm() -> dict[str, Any]:
    times = [machine.pages(size) for size in PAGE_BYTES]

    def column(price: Callable[[dict[str, float]], float]) -> list[float]:
        return [_rounded(max(0.0, price(calls)) * 1e6) for calls in times]

    return {
        "page_bytes": list(PAGE_BYTES),
        "map_us": column(lambda calls: calls["map"]),
        "set_access_us": [0.0] * len(PAGE_BYTES),
        "unmap_us": column(lambda calls: calls["unmap"]),
        "create_us": column(lambda calls: calls["fresh"] - calls["map"]),
        "release_us": column(lambda calls: calls["drop"]),
        "linear": True,
        "create_ahead": False,
    }
