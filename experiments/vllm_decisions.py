"""Does `prefix` decide as vLLM does? One trace through both, compared at every operation.

kvlab's strategy steers a trace (vllm_trace.py), vLLM's KVCacheManager answers it in a process of its own
(vllm_side.py), in an environment that has vLLM: python experiments/vllm_decisions.py --python VENV/bin/python
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_managers import BLOCK, BLOCKS, Ours, Theirs
from vllm_trace import Decision, Life, Operation, Scheduler, from_lengths, tree

from kvlab.errors import UsageError
from kvlab.harness.compose import Composer

HERE = Path(__file__).parent
QUANTITIES = {  # what is compared, and of which operations
    "granted": ("admit", "extend"),
    "hit": ("admit",),
    "free": ("admit", "extend", "free", "preempt"),
    "evicted": ("admit", "extend"),
    "blocks": ("admit", "extend"),
}
SETTINGS = [("prefix_vllm", True), ("prefix_vllm_queue", True), ("paged", False)]  # strategy, caching
SEEN = {  # counted on our side
    "steps": "steps", "operations": "operations", "preempt": "preempted", "refused": "refused", "hit": "hit tokens",
    "evicted": "blocks evicted",
}  # fmt: skip
Step = list[tuple[Operation, Decision]]
ABOUT = f"""# The same decisions as vLLM's own KVCacheManager

One trace of admits (with a chunk of the prompt), extends (a token, or the next chunk), frees and preemptions is asked
of kvlab's strategy, which steers it, and of vLLM's KVCacheManager. {BLOCKS} blocks of {BLOCK} tokens, one of them
never used (vLLM's null block). Compared at each operation: whether it was granted, the hit in tokens, the blocks free
afterwards, and, by number and in order, the blocks that left the cache and the blocks that the sequence got. The
trees share prompts by segments, some prompts repeat whole, and some requests are cut off. The ShareGPT lengths are
drawn from the quantiles that come with kvlab, an eighth as long, and share nothing.
"""
NOTES = """- vLLM changed its queue in between: since https://github.com/vllm-project/vllm/pull/42656 a block without
  a hash goes to the front, so that all of them are taken before any cached one. Each version agrees with
  one setting of `prefix` and not with the other. A setting is given up at its first trace that differs; a
  trace ends where a grant or a hit does.
- Without caching, block numbers are not meant to be equal: `paged` counts from 0 and takes the first block of a
  released sequence first, vLLM 0.32 the last one, vLLM 0.21 the one released longest ago.
- vLLM publishes a block when it is allocated, before it is computed; kvlab's engine when it is written. Here `wrote`
  is called at once.
"""


@dataclass(slots=True)
class Comparison:
    compared: Counter[str] = field(default_factory=Counter)  # by quantity
    differ: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)  # steps, operations by name, refusals, hit tokens, evicted
    first: str = ""  # difference

    @property
    def equal(self) -> bool:
        return not self.differ.total()

    def add(self, step: Step, theirs: list[Decision], ids: bool) -> None:
        """`ids`: whether block ids are meant to be equal."""
        self.seen["steps"] += 1
        for (operation, ours), other in zip(step, theirs, strict=True):
            name = operation[0]
            self.seen.update({name: 1, "operations": 1, "refused": not ours.granted})
            self.seen.update({"hit": ours.hit * ours.granted, "evicted": len(ours.evicted)})
            for quantity, names in QUANTITIES.items():
                if name not in names or (quantity == "blocks" and not ids):
                    continue
                mine, its = getattr(ours, quantity), getattr(other, quantity)
                self.compared[quantity] += 1
                if mine != its:
                    self.differ[quantity] += 1
                    where = f"step {self.seen['steps']}, {' '.join(map(str, operation))}"
                    self.first = self.first or f"{where}: {quantity} {mine} here, {its} there"


def compare(pairs: Iterable[tuple[Step, list[Decision]]], ids: bool) -> Comparison:
    """Until the trace ends, or the two part: then their sequences are no longer the same ones."""
    comparison = Comparison()
    for step, theirs in pairs:
        comparison.add(step, theirs, ids)
        if comparison.differ["granted"] or comparison.differ["hit"]:
            break
    return comparison


def together(ours: Ours, theirs: Theirs, lives: list[Life], seed: int) -> Iterator[tuple[Step, list[Decision]]]:
    """Steps of a trace that our side steers, and vLLM's answers."""
    for step in Scheduler(lives, ours, ours.lookup, seed).steps():
        yield step, theirs([operation for operation, _ in step])


def recorded(path: Path, node: dict[str, Any]) -> Iterator[tuple[Step, list[Decision]]]:
    """Steps of a recorded trace, with our decisions now and vLLM's then."""
    facts, *steps = map(json.loads, path.read_text().splitlines())
    ours = Ours(node, facts["caching"], [Life(segments) for segments in facts["requests"]])
    for step in steps:
        pairs: list[tuple[tuple[Operation, Decision], Decision]] = []
        for line in step:
            operation, theirs = tuple(line[:4]), Decision(*line[4:])
            pairs.append(((operation, ours(operation)), theirs))
            if pairs[-1][0][1][:2] != theirs[:2]:  # granted, hit: what comes next makes no sense here any more
                break
        yield [mine for mine, _ in pairs], [theirs for _, theirs in pairs]


def record(strategies: dict[str, Any], theirs: Theirs) -> None:
    """Two small traces with vLLM's decisions, for tests that have no vLLM."""
    for name, caching, requests in (("prefix_vllm", True, 50), ("paged", False, 30)):
        lives = tree(0, requests)
        version, segments = theirs.begin(caching, lives), [life.segments for life in lives]
        facts = {"vllm": version, "caching": caching, "requests": segments}
        pairs = together(Ours(strategies[name], caching, lives), theirs, lives, 0)
        steps = [[[*o, *answer] for (o, _), answer in zip(step, answers, strict=True)] for step, answers in pairs]
        lines = [json.dumps(line, separators=(",", ":")) for line in [facts, *steps]]
        (HERE / "data" / f"vllm_caching_{'on' if caching else 'off'}.jsonl").write_text("\n".join(lines) + "\n")


def nodes() -> dict[str, dict[str, Any]]:
    """The strategies that are compared, as kvlab ships them."""
    with Composer() as composer:
        settings = {name: [f"strategy={name}", f"block_size={BLOCK}"] for name in {name for name, _ in SETTINGS}}
        return {name: composer.compose(words).config["strategy"] for name, words in settings.items()}


def rows(python: str, strategies: dict[str, Any], seeds: int, requests: int) -> Iterator[list[str]]:
    """A row for each trace. The other traces of a setting are left out once one differed."""
    traces = [(f"tree, seed {seed}", seed, tree(seed, requests)) for seed in range(seeds)]
    traces.append(("sharegpt lengths / 8, seed 0", 0, from_lengths("sharegpt", 0, requests, 1 / 8)))
    with Theirs(python) as theirs:
        for name, caching in SETTINGS:
            for trace, seed, lives in traces:
                version = theirs.begin(caching, lives)
                ours = Ours(strategies[name], caching, lives)
                comparison = compare(together(ours, theirs, lives, seed), ids=caching)
                yield [version, f"`{name}`", "on" if caching else "off", trace, *cells(comparison)]
                if not comparison.equal:
                    break


def cells(comparison: Comparison) -> list[str]:
    seen = [f"{comparison.seen[name]:,}" for name in SEEN]
    return seen + [agreement(comparison.compared[q], comparison.differ[q]) for q in QUANTITIES] + [comparison.first]


def agreement(compared: int, differ: int) -> str:
    if not compared:
        return "not compared"
    return f"{differ:,} of {compared:,} differ" if differ else f"all {compared:,}"


def table(lines: list[list[str]]) -> str:
    head = ["vLLM", "kvlab", "caching", "trace", *SEEN.values(), *QUANTITIES, "first difference"]
    rule = ["---"] * 4 + ["---:"] * (len(SEEN) + len(QUANTITIES)) + ["---"]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", required=True, help="of an environment with vLLM; may be repeated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=600, help="of each trace")
    parser.add_argument("--record", action="store_true", help="write the small traces that tests read, too")
    args = parser.parse_args()
    strategies = nodes()
    try:
        if args.record:
            with Theirs(args.python[0]) as theirs:
                record(strategies, theirs)
        lines = [row for python in args.python for row in rows(python, strategies, args.seeds, args.requests)]
    except UsageError as error:
        sys.exit(str(error))
    (HERE / "vllm_decisions.md").write_text(f"{ABOUT}\n{table(lines)}\n\n{NOTES}")


if __name__ == "__main__":
    main()
