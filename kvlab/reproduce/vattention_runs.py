"""The vAttention paper's figures on a clock, as ratios: prefill, throughput, latency, spikes, batches.

SIMULATED: A100s of 80 GB, driver calls as in its Table 3, paged kernels as in its Fig. 2 and Table 7, none of which
is compared here. Its traces are not public: lengths are drawn to what it says of them.
"""

from __future__ import annotations

from math import exp, log
from random import Random
from statistics import median

import numpy as np
from numpy.typing import NDArray

from kvlab import simulate
from kvlab.reproduce import serving
from kvlab.reproduce.frame import Found, Lab, Measure
from kvlab.reproduce.vattention import MODELS, PAGES

K = 1024
RANKS = {"Yi-6B": 1, "Llama-3-8B": 2, "Yi-34B": 2}
SYSTEMS = {
    "FA2_Paged": ["strategy=paged", "block_size=256", "cost.kernel=flash_attn"],
    "FI_Paged": ["strategy=paged", "block_size=16", "cost.kernel=flashinfer"],
    "FA2_vAttention": ["strategy=vattention_ahead", f"page_group_bytes={2 * K * K}"],
}
RATES = {"Yi-6B": (0.2, 0.25), "Llama-3-8B": (0.25, 0.3), "Yi-34B": (0.1, 0.125)}
OFFLINE = 120  # requests; the paper's are 427
DECODES = 497  # iterations in Fig. 12


def machine(model: str, max_len: int, max_seqs: int) -> list[str]:
    name = model.lower().replace("-", "_")
    return [
        f"model={name}", f"model.max_position={200 * K}", "gpu=a100_80", f"tensor_parallel={RANKS[model]}",
        "admission=watermark", f"max_len={max_len}", f"engine.max_seqs={max_seqs}",
    ]  # fmt: skip


# --- one prompt


def fig13(lab: Lab) -> dict[str, Found]:
    """The second of two equal prompts, one long after the other, finds the first one's pages in place."""
    how = "SIMULATED seconds to the first token of 16,384 tokens, over those of the strategy contiguous"
    found: dict[str, Found] = {}
    for model in MODELS:
        base, _ = _prefills(lab, model, ["strategy=contiguous"])
        small, deferred = _prefills(lab, model, ["strategy=vattention", f"page_group_bytes={64 * K}"])
        large, _ = _prefills(lab, model, ["strategy=vattention", f"page_group_bytes={2 * K * K}"])
        found[f"{model}: 64 KB, synchronous"] = Found([small / base], how)
        found[f"{model}: 2 MB, synchronous"] = Found([large / base], how)
        found[f"{model}: deferred reclamation"] = Found([deferred / base], f"{how}; the second prompt, 64 KB pages")
    return found


def _prefills(lab: Lab, model: str, strategy: list[str]) -> tuple[float, float]:
    two = ["workload=fixed", f"workload.prompt_len={16 * K}", "workload.output_len=2", "workload.num_requests=2"]
    rows = serving.requests(lab, [*machine(model, 20_000, 4), *strategy, *two, "workload.rate=0.001"])
    first, second = (float(row["first_token_s"]) - float(row["arrival_s"]) for row in rows)
    return first, second


# --- decoding


def fig4(lab: Lab) -> dict[str, Found]:
    how = "the cost model's seconds of one decoding launch at 1,024 tokens each, 64 KB pages (SIMULATED)"
    found: dict[str, Found] = {}
    for model in MODELS:
        overrides = [*machine(model, 2 * K, 300), "strategy=vattention", "workload=fixed"]
        cost = simulate.plan(lab.compose([*serving.SIMULATED, *overrides])).cost
        rate = {batch: batch / float(cost.decode(batch, batch * K, 1)[0]) for batch in (1, 64, 128, 192, 256, 300)}
        found |= {f"{model}: {batch}": Found([rate[batch] / rate[1]], how) for batch in rate if batch > 1}
    return found


def fig12(lab: Lab) -> dict[str, Found]:
    """32 requests of 4K to 8K tokens, all there at the start; iterations that only decode."""
    how = f"{DECODES} iterations, prompts of 4,096 to 8,192 tokens (SIMULATED)"
    found: dict[str, list[float]] = {}
    for name, strategy in (("synchronous", "vattention"), ("overlapped", "vattention_ahead")):
        for seed in lab.seeds:
            second_S = _iterations(lab, strategy, seed)
            usual = float(np.median(second_S))
            found.setdefault(f"{name}: longest beyond the median", []).append(1e3 * (float(second_S.max()) - usual))
            found.setdefault(f"{name}: iterations beyond 1.2 medians", []).append(
                100 * float((second_S > 1.2 * usual).mean())
            )
    del found["overlapped: longest beyond the median"]
    return {name: Found(values, how) for name, values in found.items()}


def _iterations(lab: Lab, strategy: str, seed: int) -> NDArray[np.float64]:
    load = [
        "workload=uniform", "workload.num_requests=32", f"workload.prompt_len.min={4 * K}", f"seed={seed}",
        f"workload.prompt_len.max={8 * K}", f"workload.output_len.min={DECODES + 40}",
        f"workload.output_len.max={DECODES + 40}",
    ]  # fmt: skip
    pages = [f"strategy={strategy}", f"page_group_bytes={2 * K * K}"]
    steps = serving.whole(lab, [*machine("Llama-3-8B", 16 * K, 32), *pages, *load])
    decoding = (steps.column("prefill_tokens") == 0) & (steps.column("decode_seqs") == 32)
    second_S: NDArray[np.float64] = steps.column("dt_s")[decoding][:DECODES]
    return second_S


# --- traces


def fig9(lab: Lab) -> dict[str, Found]:
    how = (
        f"{OFFLINE} requests of 64K to 192K tokens, prompt : output 356 on average, all there at the start (SIMULATED)"
    )
    found: dict[str, Found] = {}
    for model in MODELS:
        rate = {name: [_per_s(lab, model, strategy, seed) for seed in lab.seeds] for name, strategy in SYSTEMS.items()}
        found |= {f"{model}: over {name}": Found(ratios, how) for name, ratios in _over_paged(rate).items()}
    return found


def _per_s(lab: Lab, model: str, strategy: list[str], seed: int) -> float:
    with serving.trace(offline_lengths(seed)) as workload:
        found = serving.metrics(lab, [*machine(model, 193 * K, 64), *strategy, *workload, f"seed={seed}"])
    return float(found["num_finished"] / found["duration_s"])


def fig10(lab: Lab) -> dict[str, Found]:
    how = "median over 200 requests, prompts of 22K to 45K, mean 29K; outputs of 6 to 3,250, mean 348 (SIMULATED)"
    found: dict[str, Found] = {}
    for model, rates in RATES.items():
        for rate in rates:
            latency = {
                name: [_median_s(lab, model, strategy, rate, seed) for seed in lab.seeds]
                for name, strategy in SYSTEMS.items()
            }
            cells = _over_paged(latency).items()
            found |= {f"{model}, {rate:g}/s: over {name}": Found(ratios, how) for name, ratios in cells}
    return found


def _median_s(lab: Lab, model: str, strategy: list[str], rate: float, seed: int) -> float:
    with serving.trace(online_lengths(seed)) as workload:
        load = [*workload, f"workload.rate={rate}", f"seed={seed}"]
        rows = serving.requests(lab, [*machine(model, 49 * K, 256), *strategy, *load])
    return median(float(row["finish_s"]) - float(row["arrival_s"]) for row in rows)


def _over_paged(found: dict[str, list[float]]) -> dict[str, list[float]]:
    """vAttention's value over each paged one's, seed by seed."""
    ours = found["FA2_vAttention"]
    return {
        name: [one / other for one, other in zip(ours, found[name], strict=True)] for name in ("FA2_Paged", "FI_Paged")
    }


def offline_lengths(seed: int, count: int = OFFLINE) -> list[tuple[int, int]]:
    """Totals even in logs from 64K to 192K; prompt : output lognormal (sigma 1) of mean 356; outputs 17 to 5,153."""
    rng, pairs = Random(f"offline {seed}"), []
    for _ in range(count):
        total = round(exp(rng.uniform(log(64 * K), log(192 * K))))
        output = round(total / (1 + 356 * exp(rng.gauss(0, 1) - 0.5)))
        output = min(max(output, 17), 5153)
        pairs.append((total - output, output))
    return pairs


def online_lengths(seed: int, count: int = 200) -> list[tuple[int, int]]:
    """Prompts beta from 22K to 45K, mean 29K; outputs lognormal, with means of 348 and of 1/225 for their inverse."""
    rng, pairs = Random(f"online {seed}"), []
    sigma = log(348 / 225) ** 0.5
    for _ in range(count):
        prompt = round(22_000 + 23_000 * rng.betavariate(1, 16 / 7))
        output = round(exp(rng.gauss(log(348) - sigma**2 / 2, sigma)))
        pairs.append((prompt, min(max(output, 6), 3250)))
    return pairs


# --- batches


def fig15(lab: Lab) -> dict[str, Found]:
    how = "400 requests of workload=sharegpt, all there at the start; most sequences at once"
    found: dict[str, Found] = {}
    for model in MODELS:
        most = {page: [_most(lab, model, size, seed) for seed in lab.seeds] for page, size in PAGES.items()}
        for page in ("64 KB", "128 KB", "256 KB"):
            ratios = [one / other for one, other in zip(most[page], most["2 MB"], strict=True)]
            found[f"{model}: {page}"] = Found(ratios, how)
    return found


def _most(lab: Lab, model: str, page: int, seed: int) -> float:
    load = ["workload=sharegpt", "workload.num_requests=400", f"seed={seed}"]
    pages = ["strategy=vattention_ahead", f"page_group_bytes={page}"]
    return float(serving.metrics(lab, [*machine(model, 8 * K, 1024), *pages, *load])["max_batch_size.whole"])


FIGURES: dict[str, tuple[str, Measure]] = {
    "fig13": ("cost model", fig13),
    "fig4": ("cost model", fig4),
    "fig9": ("cost model", fig9),
    "fig10": ("cost model", fig10),
    "fig12": ("cost model", fig12),
    "fig15": ("bookkeeping", fig15),
}
