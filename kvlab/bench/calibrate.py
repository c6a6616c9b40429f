"""From this machine's measured parts, and some real launches, to the constants of a cost model.

The parts (kvlab/bench/machine.py) say what products, attention and moves take alone. What a launch of the real engine
takes beyond them is fitted as so much for each launch, sequence and token, on batches of equal prompts: a workload of
its own, so that any other is a fair comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kvlab.bench import machine
from kvlab.build import build_strategy
from kvlab.cost.model import build_cost
from kvlab.cost.rank import VALUE_BYTES, Rank
from kvlab.engine.kernels import build_kernels
from kvlab.engine.real import real_engine
from kvlab.model.llama import Llama
from kvlab.request import Request

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
BLOCK_SIZES = (1, 16, 64)
PROMPTS = (256, 768)  # tokens
PAGE_BYTES = (65536, 262144, 2097152)
BATCHES = ((1, 48), (1, 384), (3, 160), (8, 64), (8, 320), (20, 24), (24, 96))  # prompts, tokens of each
DECODES = 10  # launches that only decode, of each batch
MAX_LEN = 1024
TERMS = ("launch", "decode_sequence", "prefill_sequence", "token")
Say = Callable[[str], None]


class Launched(NamedTuple):
    """One launch of the real engine, and its seconds, planning and recording included."""

    new_B: NDArray[np.int64]
    stop_B: NDArray[np.int64]
    samples: int
    seconds: float


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


def _cost(config: dict[str, Any], model: Llama, gpu: dict[str, Any]) -> dict[str, Any]:
    shape, bandwidth = model.shape, gpu["bandwidth_gb_s"] * 1e9
    peak = next(gpu[key] for key in ("tflops_16bit", "tflops_32bit") if gpu[key]) * 1e12
    token_bytes = shape.token_bytes(config["dtype"])
    with ExitStack() as stack:
        place = machine.attended(stack, model, build_kernels(config["attention"]), 16, PROMPTS[-1])
        decode = {size: place.decode(size) for size in (None, *BLOCK_SIZES)}
        prompts = {size: [place.prompt(length, size) for length in PROMPTS] for size in (None, BLOCK_SIZES[1])}
        copy_call, copy_token = machine.copies(place)
        stored = place.batch * place.length * token_bytes
    rows, blocks = prompts.values()
    seen = [4 * shape.layers * shape.q_heads * shape.head_dim * n * (n + 1) / 2 for n in PROMPTS]
    rate = (seen[1] - seen[0]) / max(rows[1] - rows[0], 1e-9)  # what prompts cost apart is in the overhead
    return {
        "efficiency": {
            "weights": 1.0,
            "products": 1.0,
            "decode_attention": _share(stored / decode[None] / bandwidth),
            "decode_operations": 1.0,
            "prefill_attention": _share(rate / peak),
            "copy": _share(2 * token_bytes / max(copy_token, 1e-12) / bandwidth),
        },
        "query_tile": PROMPTS[-1],
        "memory_fraction": 0.9,
        "activation_tokens": 0,
        "overlap_mapping": True,
        "copy_call_us": _rounded(copy_call * 1e6),
        "overhead": {f"{name}_us": 0.0 for name in TERMS},
        "kernel": None,
        "paged_factor": None,
        "kernels": {
            str(config["attention"]["name"]): {
                "prefill_context": list(PROMPTS),
                "prefill_factor": [_rounded(b / a) for a, b in zip(rows, blocks, strict=True)],
                "decode_block_size": list(BLOCK_SIZES),
                "decode_factor": [_rounded(decode[size] / decode[None]) for size in BLOCK_SIZES],
            }
        },
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


def observe(
    config: dict[str, Any], model: Llama, batches: Sequence[tuple[int, int]] = BATCHES, decodes: int = DECODES
) -> list[Launched]:
    """Launches of the real engine: every batch's prompts at once, then its decodes together."""
    return [launch for batch, length in batches for launch in _batch(config, model, batch, length, decodes)]


def _batch(config: dict[str, Any], model: Llama, batch: int, length: int, decodes: int) -> list[Launched]:
    token_bytes, final = model.shape.token_bytes(config["dtype"]), length + decodes + 1
    pool = 2 * (batch + 1) * max(final, int(config["max_len"]) // 8) * token_bytes
    strategy = build_strategy(config, token_bytes, model.shape.layers, pool)
    random, seen = np.random.default_rng(length), list[Launched]()
    requests = [
        Request(index, length, decodes + 1, final, 0.0, random.integers(0, model.shape.vocab, length, np.int32))
        for index in range(batch)
    ]
    with real_engine(config, model, strategy, requests) as engine:
        inner = engine.executor.run

        def run(moves: Any, launch: Any) -> Any:
            seen.append(Launched(launch.stop_B - launch.start_B, launch.stop_B, int(launch.samples_B.sum()), 0.0))
            return inner(moves, launch)

        engine.executor.run = run  # type: ignore[method-assign]
        busy = True
        while busy:
            begin, launches = machine.clock(), len(seen)
            busy = engine.step()
            if len(seen) > launches:
                seen[-1] = seen[-1]._replace(seconds=machine.clock() - begin)
    return seen


def fit(
    config: dict[str, Any], model: Llama, launches: Sequence[Launched]
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of each of TERMS, none below 0, that make up best for what the parts leave, by shares of a launch.

    config's own overhead is 0. Errors: of decoding and of prompts, median, and all together.
    """
    token_bytes = model.shape.token_bytes(config["dtype"])
    strategy = build_strategy(config, token_bytes, model.shape.layers, 64 * int(config["max_len"]) * token_bytes)
    cost = build_cost(config, model.shape, strategy)
    parts_N = np.array([cost.launch(launch.new_B, launch.stop_B, launch.samples) for launch in launches])
    seconds_N = np.array([launch.seconds for launch in launches])
    terms_NK = np.array([_terms(launch) for launch in launches], float)
    found_K = _not_negative(terms_NK / seconds_N[:, None], (seconds_N - parts_N) / seconds_N)
    error_N = (parts_N + terms_NK @ found_K) / seconds_N - 1
    prompt_N = terms_NK[:, 2] > 0
    errors = {
        "decode_median": float(median(np.abs(error_N[~prompt_N]))),
        "prefill_median": float(median(np.abs(error_N[prompt_N]))),
        "total": float((parts_N + terms_NK @ found_K).sum() / seconds_N.sum() - 1),
    }
    return dict(zip(TERMS, found_K.tolist(), strict=True)), errors


def _terms(launch: Launched) -> tuple[int, int, int, int]:
    prompts = int((launch.new_B > 1).sum())
    return 1, len(launch.new_B) - prompts, prompts, int(launch.new_B.sum())


def _not_negative(matrix_NK: NDArray[np.float64], wanted_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares; a term that would be negative is left out, the lowest first."""
    found_K, kept = np.zeros(matrix_NK.shape[1]), list(range(matrix_NK.shape[1]))
    while kept:
        values = np.linalg.lstsq(matrix_NK[:, kept], wanted_N, rcond=None)[0]
        if (values >= 0).all():
            found_K[kept] = values
            break
        kept.pop(int(values.argmin()))
    return found_K
