"""The PagedAttention paper's figures on a clock: sustained rates, block sizes and swapping, as ratios.

SIMULATED: OPT-13B on an A100 of 40 GB, in the paper's pool. Arrivals are Poisson, over 200 s of ShareGPT
and 40 s of Alpaca, whose requests are six times shorter; the paper's traces take an hour.
"""

from __future__ import annotations

from kvlab.reproduce import rates
from kvlab.reproduce.frame import Found, Lab, Measure
from kvlab.reproduce.sosp23 import SYSTEMS, TRACES, Load

TRACE_S = {"ShareGPT": 200.0, "Alpaca": 40.0}  # seconds of arrivals
LARGE_BLOCKS = (32, 64, 128, 256)
LATENCY_AT_16 = {"ShareGPT": 0.085, "Alpaca": 0.594}  # s/token in Fig. 18b: says at which load, and is not compared
SWAP_AT_16 = 0.073  # s/token, recomputing, in Fig. 19b: the same
HOST = f"host_bytes={12 << 30}"


def served(system: str, trace: str, seed: int, blocks: int = 16) -> list[str]:
    """A run of the paper's pool; how many requests come is given beside it."""
    return Load(blocks=15_744 // blocks, block_size=blocks).overrides(system, trace, seed)


def fig12(lab: Lab) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for trace in TRACES:
        rate = {
            system: [sustained(lab, trace, served(system, trace, seed)) for seed in lab.seeds] for system in SYSTEMS
        }
        best = rate.pop("vLLM")
        for system, others in rate.items():
            how = f"{_arrivals(trace)}, at 0.5 s/token: vLLM {_mean(best):.2f}/s, {system} {_mean(others):.2f}/s"
            ratios = [ours / theirs for ours, theirs in zip(best, others, strict=True)]
            found[f"{trace}: over {system}"] = Found(ratios, how)
    return found


def fig18b(lab: Lab) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for trace, base in LATENCY_AT_16.items():
        at = [sustained(lab, trace, served("vLLM", trace, seed), base) for seed in lab.seeds]
        how = f"{_arrivals(trace)}, at the rate where blocks of 16 have {base} s/token ({_mean(at):.2f}/s)"
        for size in LARGE_BLOCKS:
            values = [
                _latency(lab, trace, served("vLLM", trace, seed, size), rate) / base
                for seed, rate in zip(lab.seeds, at, strict=True)
            ]
            found[f"{trace}: {size}"] = Found(values, how)
    return found


def fig19b(lab: Lab) -> dict[str, Found]:
    trace = "ShareGPT"
    at = [sustained(lab, trace, served("vLLM", trace, seed), SWAP_AT_16) for seed in lab.seeds]
    how = f"{_arrivals(trace)}, at the rate where blocks of 16 have {SWAP_AT_16} s/token ({_mean(at):.2f}/s)"
    found: dict[str, Found] = {}
    for size in (8, 16, *LARGE_BLOCKS):
        ratios = []
        for seed, rate in zip(lab.seeds, at, strict=True):
            run = served("vLLM", trace, seed, size)
            ratios.append(_latency(lab, trace, [*run, "preemption=swap", HOST], rate) / _latency(lab, trace, run, rate))
        found[str(size)] = Found(ratios, how)
    return found


def sustained(lab: Lab, trace: str, overrides: list[str], allowed: float = rates.ALLOWED) -> float:
    return rates.sustained(lab, overrides, TRACE_S[trace], allowed)


def _latency(lab: Lab, trace: str, overrides: list[str], rate: float) -> float:
    return rates.latency(lab, overrides, rate, TRACE_S[trace])


def _arrivals(trace: str) -> str:
    return f"{trace}, {TRACE_S[trace]:g} s of Poisson arrivals (SIMULATED)"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


FIGURES: dict[str, tuple[str, Measure]] = {
    "fig12": ("cost model", fig12),
    "fig18b": ("cost model", fig18b),
    "fig19b": ("cost model", fig19b),
}
