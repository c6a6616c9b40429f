"""The PagedAttention paper's other rates, as ratios: several answers, a shared prefix, chats, and larger models.

SIMULATED, as kvlab.reproduce.sosp23_rates. Models of several GPUs are split over A100s, in the pools of its Table 1.
"""

from __future__ import annotations

from kvlab.reproduce import rates, serving
from kvlab.reproduce.frame import Found, Lab, Measure
from kvlab.reproduce.sosp23 import SYSTEMS, TRACES
from kvlab.reproduce.sosp23_rates import served, sustained
from kvlab.workload.sources import find_rows

ANSWERS = (2, 4, 6)
PREFIXES = {"1-shot": 80, "5-shot": 341}  # tokens of instruction and examples, section 6.4
PREFIX_S, CHAT_S = 20.0, 400.0  # seconds of arrivals
SENTENCE, TRANSLATION = (10, 60), (15, 75)  # tokens, evenly drawn: an assumption, the paper says nothing
CHATS, LATEST = 6000, 1024  # requests drawn; tokens of a prompt, and of an answer, section 6.5
WHOLE = 16_384  # tokens of a chat before it is cut, at most
OPT_13B = ["model=opt_13b", "gpu=a100_40", "cost.memory_fraction=0.92", "pool_blocks=984"]
OPT_175B = [
    "model=opt_66b", "model.layers=96", "model.q_heads=96", "model.kv_heads=96", "model.hidden=12288",
    "model.ffn=49152",
]  # fmt: skip
LARGE = {  # the model, its GPUs, and blocks of 16 by Table 1
    "66B": ["model=opt_66b", "gpu=a100_40", "tensor_parallel=4", "cost.memory_fraction=0.95", "pool_blocks=606"],
    "175B": [*OPT_175B, "gpu=a100_80", "tensor_parallel=8", "cost.memory_fraction=0.95", "pool_blocks=3756"],
}
COMMON = [
    "max_len=2048", "block_size=16", "cost.kernel=vllm_sosp23", "engine.max_preemptions=1000000",
    "engine.max_seqs=1024",
]  # fmt: skip


def fig14(lab: Lab) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for count in ANSWERS:
        several = f"workload.n={count}"
        rate = {
            system: [sustained(lab, "Alpaca", [*served(system, "Alpaca", seed), several]) for seed in lab.seeds]
            for system in SYSTEMS
        }
        found |= _over(rate, f"parallel {count}", "Alpaca, 40 s of Poisson arrivals (SIMULATED), at 0.5 s/token")
    return found


def fig12_large(lab: Lab) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for model, machine in LARGE.items():
        for trace in TRACES:
            rate = {
                system: [sustained(lab, trace, [*_large(machine, preset, trace), f"seed={seed}"]) for seed in lab.seeds]
                for system, preset in SYSTEMS.items()
            }
            found |= _over(rate, f"{model} {trace}", f"OPT-{model}, {trace}, Poisson (SIMULATED), at 0.5 s/token")
    return found


def _large(machine: list[str], preset: str, trace: str) -> list[str]:
    return [*COMMON, *machine, f"preset={preset}", f"workload={TRACES[trace]}"]


def fig16(lab: Lab) -> dict[str, Found]:
    """vLLM has the prefix's blocks in its cache, Orca computes and keeps them for each request."""
    found: dict[str, Found] = {}
    for name, tokens in PREFIXES.items():
        rate = {
            system: [
                rates.sustained(lab, [*with_prefix(tokens, system), f"seed={seed}"], PREFIX_S) for seed in lab.seeds
            ]
            for system in ("vLLM", "Orca (Oracle)")
        }
        how = f"a prefix of {tokens} tokens, {PREFIX_S:g} s of Poisson arrivals (SIMULATED), at 0.5 s/token"
        found |= _over(rate, name, how)
    return found


def with_prefix(tokens: int, system: str) -> list[str]:
    """A run of translations behind a prefix that all of them share."""
    lengths = [
        f"workload.{part}_len.{bound}={value}"
        for part, bounds in (("prompt", SENTENCE), ("output", TRANSLATION))
        for bound, value in zip(("min", "max"), bounds, strict=True)
    ]
    return [
        *COMMON, "model=llama_13b", "gpu=a100_40", "cost.memory_fraction=0.92", "pool_blocks=984",
        f"preset={SYSTEMS[system]}", *(["strategy=prefix"] if system == "vLLM" else []),
        "workload=uniform", f"workload.system_prompt={tokens}", *lengths,
    ]  # fmt: skip


def fig17(lab: Lab) -> dict[str, Found]:
    """Requests of chats: the last 1,024 tokens of what was said, and at most as many more."""
    rate: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    for seed in lab.seeds:
        with serving.trace(chats(lab, seed)) as requests:
            for system, preset in SYSTEMS.items():
                rate[system].append(rates.sustained(lab, chat(requests, preset, seed), CHAT_S))
    found = _over(rate, "chat", f"{CHAT_S:g} s of Poisson arrivals (SIMULATED), at 0.5 s/token")
    each_seed = zip(*(ratios.values for ratios in found.values()), strict=True)
    means = Found([sum(ratios) / len(ratios) for ratios in each_seed], "mean of those three")
    return {**found, "chat: over the three Orcas, by the text": means}


def chat(requests: list[str], preset: str, seed: int) -> list[str]:
    """A run of requests of chats."""
    return [
        *COMMON, *OPT_13B, f"preset={preset}", *requests, f"workload.max_tokens={LATEST}", f"seed={seed}",
    ]  # fmt: skip


def chats(lab: Lab, seed: int) -> list[tuple[int, int]]:
    """Lengths of ShareGPT's chats with their whole history as prompt (workload=sharegpt), cut as the paper says."""
    config = lab.compose(["workload=sharegpt", f"workload.num_requests={CHATS}"])
    rows = find_rows(config["workload"], seed, WHOLE)
    return [(min(prompt, LATEST), min(output, LATEST)) for prompt, output in zip(rows.prompt, rows.output, strict=True)]


def _over(rate: dict[str, list[float]], name: str, how: str) -> dict[str, Found]:
    """What vLLM sustains over what each other does, seed by seed."""
    best = rate["vLLM"]
    found: dict[str, Found] = {}
    for system, others in rate.items():
        if system == "vLLM":
            continue
        ratios = [ours / theirs for ours, theirs in zip(best, others, strict=True)]
        said = f"{how}: vLLM {sum(best) / len(best):.2f}/s, {system} {sum(others) / len(others):.2f}/s"
        found[f"{name}: over {system}"] = Found(ratios, said)
    return found


FIGURES: dict[str, tuple[str, Measure]] = {
    "fig14": ("cost model", fig14),
    "fig16": ("cost model", fig16),
    "fig17": ("cost model", fig17),
    "fig12_large": ("cost model", fig12_large),
}
