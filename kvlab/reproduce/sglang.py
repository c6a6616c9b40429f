"""The SGLang paper's hit rates, what cache-aware scheduling makes of them, and where a cache gains nothing.

Llama-2-7B on an A10G, as the paper's; 16,000 tokens of keys and values, as its repository gives for that pair. The
clock is SIMULATED: it says when an answer is there and the next call can be made.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

from kvlab.reproduce import programs
from kvlab.reproduce.frame import Found, Lab, Measure
from kvlab.reproduce.programs import Program, Result
from kvlab.reproduce.sglang_workloads import WORKLOADS, branching

POOL, TOGETHER = 16_000, 64  # tokens; programs under way
SERVER = ["preset=sglang", "model=llama_2_7b", "max_len=4096", "engine.max_preemptions=1000000"]
LONGEST_PREFIX = "engine.queue=longest_prefix"
ALL_THE_MEMORY = ["gpu=h200"]  # nothing is ever evicted: no workload here fills it
ONE_AT_A_TIME = "engine.max_seqs=1"


def hit_rates(lab: Lab) -> dict[str, Found]:
    how = f"preset sglang, {LONGEST_PREFIX}, {POOL:,} tokens, {TOGETHER} programs at a time: tokens found"
    return {
        name: Found([served(lab, name, seed, [LONGEST_PREFIX]).hit_rate for seed in lab.seeds], how)
        for name in WORKLOADS
    }


def schedule(lab: Lab) -> dict[str, Found]:
    how = f"{{}}, over the hit rate one call at a time with nothing evicted, {len(WORKLOADS)} workloads"
    orders = {"longest shared prefix first": [LONGEST_PREFIX], "first come first served": []}
    found = {
        f"{order}: mean over the workloads": Found(
            [mean(_of_best(lab, name, seed, extra) for name in WORKLOADS) for seed in lab.seeds],
            how.format("engine.queue=arrival" if not extra else extra[0]),
        )
        for order, extra in orders.items()
    }
    return found | _theorem(lab)


def _of_best(lab: Lab, name: str, seed: int, extra: list[str]) -> float:
    best = _kept(lab, f"{name}, best", seed, WORKLOADS[name], [*ALL_THE_MEMORY, ONE_AT_A_TIME], 1)
    return 100 * served(lab, name, seed, extra).hit_rate / best.hit_rate


def _theorem(lab: Lab) -> dict[str, Found]:
    """With room for one request at a time, the longest, a batch in depth-first order finds all that can be found."""
    how = "a random tree of prompts, all there at the start, room for the longest request alone: {}"
    orders: dict[str, tuple[Callable[[list[Program]], list[Program]], list[str]]] = {
        "longest shared prefix first": (list, [LONGEST_PREFIX]),
        "depth first": (lambda calls: sorted(calls, key=lambda one: one[0].new), []),
        "first come first served": (list, []),
    }
    found = {}
    for order, (arranged, extra) in orders.items():
        values = [_of_the_best_order(lab, arranged(branching(seed)), seed, extra) for seed in lab.seeds]
        found[f"one at a time, {order}: of the best"] = Found(values, how.format(order))
    return found


def _of_the_best_order(lab: Lab, calls: list[Program], seed: int, extra: list[str]) -> float:
    longest = max(sum(piece.tokens for piece in one[0].new) + one[0].output for one in calls)
    together = [*SERVER, f"seed={seed}", ONE_AT_A_TIME]
    best = programs.serve(lab, [*together, *ALL_THE_MEMORY], calls, len(calls))
    small = [*together, "gpu=a10g", "block_size=1", f"pool_blocks={longest}", f"max_len={longest}"]
    return 100 * programs.serve(lab, [*small, *extra], calls, len(calls)).hit_rate / best.hit_rate


def long_chat(lab: Lab) -> dict[str, Found]:
    how = f"seconds without sharing over seconds with it, {LONGEST_PREFIX} (SIMULATED)"
    found = {}
    for answers in ("long", "short"):
        name = f"multi-turn chat, {answers} answers"
        ratios = []
        for seed in lab.seeds:
            alone = served(lab, name, seed, [LONGEST_PREFIX], share=False).duration_s
            ratios.append(alone / served(lab, name, seed, [LONGEST_PREFIX]).duration_s)
        found[f"{answers} answers"] = Found(ratios, how)
    return found


def served(lab: Lab, name: str, seed: int, extra: list[str], share: bool = True) -> Result:
    label = f"{name}, {' '.join(extra)}{'' if share else ', nothing shared'}"
    own = ["gpu=a10g", "block_size=1", f"pool_blocks={POOL}", *extra]
    return _kept(lab, label, seed, WORKLOADS[name], own, TOGETHER, share)


def _kept(
    lab: Lab,
    label: str,
    seed: int,
    make: Callable[[int], list[Program]],
    extra: list[str],
    together: int,
    share: bool = True,
) -> Result:
    """Runs that several figures read are carried out once."""
    key = ("sglang", label, str(seed))
    if key not in lab.kept:
        lab.kept[key] = programs.serve(lab, [*SERVER, f"seed={seed}", *extra], make(seed), together, share)
    result: Result = lab.kept[key]
    return result


FIGURES: dict[str, tuple[str, Measure]] = {
    "hit_rates": ("bookkeeping", hit_rates),
    "schedule": ("bookkeeping", schedule),
    "long_chat": ("cost model", long_chat),
}
