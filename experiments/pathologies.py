"""Settings that go wrong, each beside the one that does not, over the tiny model on a clock of steps.

python experiments/pathologies.py --out experiments/pathologies.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from script import told

from kvlab.harness import output
from kvlab.harness.compose import Composer
from kvlab.run import execute

TOKEN = 2 * 2 * 2 * 16 * 8  # bytes of a token's keys and values in the tiny model, float64
BASE = ["model=tiny", "dtype=float64", "engine.clock=steps", "max_len=64", "block_size=4", "workload=fixed"]
RATIO = ["admission=new_token_ratio", "admission.start=1", "admission.steps=1"]
COLUMNS = {
    "steps": "num_steps", "finished": "num_finished", "failed": "num_failed", "preemptions": "num_preemptions",
    "tokens recomputed": "recomputed_tokens", "tokens swapped out": "swapped_out_tokens",
    "swaps refused": "num_swaps_refused",
}  # fmt: skip


class Pathology(NamedTuple):
    name: str
    why: str
    shared: list[str]
    causes: str  # the setting with which it happens
    cures: str


def work(requests: int, prompt: int, output: int, tokens: int) -> list[str]:
    """So many alike, at once, in a pool of so many tokens."""
    lengths = [f"workload.prompt_len={prompt}", f"workload.output_len={output}", f"workload.max_tokens={output}"]
    return [f"workload.num_requests={requests}", *lengths, f"pool_bytes={tokens * TOKEN}"]


PATHOLOGIES = (
    Pathology(
        "prompts send each other away",
        "Each starts when its first chunk fits, and none has room for the rest.",
        ["strategy=paged", "engine.token_budget=8", "engine.max_preemptions=1000", *work(8, 40, 8, 64)],
        "admission=first_chunk", "admission=full_prompt",
    ),
    Pathology(
        "the largest gives way",
        "As above, but whoever is nearly there is sent back.",
        ["strategy=paged", "engine.token_budget=8", "admission=first_chunk", *work(8, 40, 8, 64)],
        "victim=most_blocks", "victim=newest",
    ),
    Pathology(
        "admission that trusts short outputs more and more",
        "The share of outputs that is left for growth falls to nothing, and those that run are retracted.",
        [*RATIO, "strategy=paged", *work(12, 8, 40, 128)],
        "admission.lowest=0", "admission.lowest=1",
    ),
    Pathology(
        "a host tier that is full",
        "Who gives way is computed again, though swapping was asked for.",
        ["strategy=paged", "preemption=swap", *work(8, 8, 40, 96)],
        f"host_bytes={8 * TOKEN}", f"host_bytes={1000 * TOKEN}",
    ),
    Pathology(
        "nobody gives way",
        "Admission leaves no room for growth, and who cannot grow fails.",
        ["strategy=paged", "preemption=none", *work(8, 8, 40, 96)],
        "admission=prompt_plus_one", "admission=reserve_max_tokens",
    ),
    Pathology(
        "a sole request that cannot extend",
        "One search, whose beams differ early and do not fit together; as an unshared answer it does.",
        ["strategy=contiguous", *work(1, 8, 40, 128)],
        "workload.beams=3", "workload.beams=0",
    ),
)  # fmt: skip


def rows() -> Iterator[str]:
    with Composer() as composer, TemporaryDirectory() as directory:
        for one in PATHOLOGIES:
            for setting, name in ((one.causes, f"**{one.name}**. {one.why}"), (one.cures, "")):
                result = execute(composer.compose([*BASE, *one.shared, setting]).config, Path(directory))
                yield f"| {name} | `{setting}` | " + " | ".join(_figures(result)) + " |"


def _figures(result: dict[str, Any]) -> Iterator[str]:
    return (f"{result[key]:,}" for key in COLUMNS.values())


def page() -> str:
    settings = "\n".join(f"- {one.name}: `{' '.join(one.shared)}`" for one in PATHOLOGIES)
    head = ["what goes wrong", "setting", *COLUMNS]
    table = "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *rows()])
    return f"""# Settings that go wrong

Each in two runs that differ in one setting: with the first it happens, with the second it does not, or less.
Every run ends:
a request that would be preempted more than `engine.max_preemptions` times (20 where nothing else is said) fails with
that reason, and so does one that cannot go on while nobody gives way.

{table}

Not here: admission that reserves too much and thereby evicts prefixes, as servers have seen (a reserve is taken from
the cache there). In kvlab what an admission wants left over may stay cached, so no setting of it evicts anything:
the more it keeps back, the fewer run at a time, and the fewer prefixes are evicted.

Made by `python experiments/pathologies.py --out experiments/pathologies.md` over the tiny model with random weights,
in float64, on a clock that counts steps: counts, no times. All runs: `{" ".join(BASE)}`, and

{settings}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("experiments/pathologies.md"))
    out = parser.parse_args().out
    output.check(out)
    output.write(out, page())


if __name__ == "__main__":
    told(main)
