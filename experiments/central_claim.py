"""The article's central claim, measured: alone, contiguous is as fast as any; in equal memory, batch wins.

python experiments/central_claim.py [--repeats 5] [--out central_claim.md] [NAME=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from kvlab.bench import engine
from kvlab.harness import output, provenance
from kvlab.harness.compose import Composer
from kvlab.harness.progress import Bar
from kvlab.harness.table import grid
from kvlab.model.load import load
from kvlab.record.others import OthersShare

STRATEGIES = ("contiguous", "paged", "vattention")
BASE = ["model=smollm2", "dtype=bfloat16", "block_size=16", "max_len=2048", "engine.threads=2"]
ALONE = ["workload=fixed", "workload.num_requests=1", "workload.prompt_len=1024", "workload.output_len=128",
         "engine.max_seqs=1", "pool_bytes=180MiB"]  # fmt: skip
TOGETHER = ["workload=listed", "engine.max_seqs=64", "pool_bytes=180MiB"]  # four rows of max_len tokens
HEAD = ["strategy", "alone, tokens/s", "against contiguous", "together, tokens/s", "against contiguous", "mean batch"]
NOTES = """\
- alone: one request of 1,024 + 128 tokens; its rate is that of its 127 later tokens. Against contiguous: the median
  over the rounds of the rate divided by contiguous's in the same round.
- together: 64 requests at once (`workload=listed`: 10,279 + 9,134 tokens) in 180 MiB, which are four rows of
  `max_len=2048` tokens: contiguous reserves a row for each request. Mean batch: requests running, mean over steps.
- The strategies took turns, round by round. Tokens are greedy: {same}."""


def measured(words: list[str], repeats: int) -> dict[str, Any]:
    """For each strategy the rates of all rounds, alone and together."""
    with Composer() as composer:
        configs = {
            (kind, name): composer.compose([*BASE, *work, f"strategy={name}", *words]).config
            for kind, work in (("alone", ALONE), ("together", TOGETHER))
            for name in STRATEGIES
        }
    first = configs["alone", STRATEGIES[0]]
    model = load(first["model"], first["dtype"]).model
    engine.batch(first, model)  # what happens once in a process would count as the first one's
    found: dict[tuple[str, str], list[Any]] = {key: [] for key in configs}
    shares = []
    with Bar("runs", repeats * len(configs)) as bar:
        for turn in range(repeats * len(configs)):
            key, others = list(configs)[turn % len(configs)], OthersShare()
            measure = engine.batch if key[0] == "alone" else engine.serve
            found[key].append(measure(configs[key], model))
            shares.append(others.share() or 0.0)
            bar.to(turn + 1, repeats * len(configs))
    return {"others_cpu_share": max(shares), "rows": [_row(name, found) for name in STRATEGIES]}


def _row(name: str, found: dict[tuple[str, str], list[Any]]) -> dict[str, Any]:
    served = found["together", name]
    return {
        "strategy": name,
        "alone_tokens_per_s": [one.steps / one.decode_s for one in found["alone", name]],
        "together_tokens_per_s": [one.output_tokens / one.wall_s for one in served],
        "mean_batch_requests": served[0].mean_batch,
        "digests": sorted({one.digest for one in served}),
    }


def page(record: dict[str, Any]) -> str:
    rows = record["rows"]
    alike = len({tuple(row["digests"]) for row in rows}) == 1
    same = "all strategies' outputs are the same" if alike else "outputs differ"
    body = [
        [row["strategy"], *_rates(row, rows[0], "alone", 1), *_rates(row, rows[0], "together", 0),
         f"{row['mean_batch_requests']:.1f}"]
        for row in rows
    ]  # fmt: skip
    return f"""\
# The central claim, measured

SmolLM2, bfloat16, on a CPU, real memory; medians [lowest-highest] of {record["repeats"]} rounds.

    {record["command"]}

{grid(HEAD, body, left={"strategy"})}
{NOTES.format(same=same)}

{record["cpu"]}, {record["cores"]} cores, others used up to {record["others_cpu_share"]:.0%} of the CPU; commit \
{record["commit"]}.
"""


def _rates(row: dict[str, Any], first: dict[str, Any], key: str, digits: int) -> list[str]:
    rates = row[f"{key}_tokens_per_s"]
    ratio = median(mine / theirs for mine, theirs in zip(rates, first[f"{key}_tokens_per_s"], strict=True))
    return [f"{median(rates):,.{digits}f} [{min(rates):,.{digits}f}-{max(rates):,.{digits}f}]", f"{ratio:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="NAME=VALUE", help="overrides, as for kvlab run")
    parser.add_argument("--repeats", metavar="N", type=int, default=5, help="rounds (5)")
    parser.add_argument("--out", metavar="FILE", type=Path, help="also write the table to FILE, in Markdown")
    args = parser.parse_args()
    output.check(args.out)
    record = {
        "repeats": args.repeats,
        **provenance.brief(),
        "command": " ".join(["python experiments/central_claim.py", *args.overrides, f"--repeats {args.repeats}"]),
        **measured(args.overrides, args.repeats),
    }
    text = page(record)
    if args.out:
        output.write(args.out, text)
    print(text)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
