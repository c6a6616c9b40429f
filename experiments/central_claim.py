"""The article's central claim, measured: alone, contiguous is as fast as any; in equal memory, batch wins.

python experiments/central_claim.py [--repeats 5] [--out central_claim.md] [NAME=VALUE ...]

Six runs a round: a minute on two idle cores. Each run's numbers go to FILE.jsonl beside --out FILE.md as soon as it is
over, and the page is written after each round.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from script import told, whole_number

from kvlab.bench import engine
from kvlab.errors import UsageError
from kvlab.harness import output, provenance
from kvlab.harness.compose import Composer
from kvlab.harness.progress import Bar
from kvlab.harness.table import grid
from kvlab.model.load import load
from kvlab.record.others import OthersShare

STRATEGIES = ("contiguous", "paged", "vattention")
BASE = ["model=smollm2", "dtype=bfloat16", "block_size=16", "max_len=2048", "engine.threads=2"]
ROWS = "pool_bytes=180MiB"  # four of max_len tokens
ALONE = ["workload=fixed", "workload.num_requests=1", "workload.prompt_len=1024", "workload.output_len=384",
         "engine.max_seqs=1", ROWS]  # fmt: skip
TOGETHER = ["workload=listed", "workload.num_requests=48", "engine.max_seqs=48", ROWS]
WORKS = {"alone": ALONE, "together": TOGETHER}
NOTES = """\
- alone: one request of 1,024 + 384 tokens; its rate is that of its 383 later tokens. Against contiguous: the median
  over the rounds of the rate divided by contiguous's in the same round.
- together: 48 requests at once (the first of `workload=listed`: 7,603 + 6,859 tokens) in 180 MiB, which are four rows
  of `max_len=2048` tokens: contiguous reserves a row for each request. Mean batch: requests running, mean over steps.
  Preempted: times that a request had to give its memory back and compute its tokens again.
- The strategies took turns, round by round. Tokens are greedy: {same}."""

Row = dict[str, Any]
Key = tuple[str, str]  # a name of WORKS, and a strategy


def configs(words: list[str]) -> dict[Key, dict[str, Any]]:
    """UsageError: an override is wrong."""
    with Composer() as composer:
        return {
            (kind, name): composer.compose([*BASE, *work, f"strategy={name}", *words]).config
            for kind, work in WORKS.items()
            for name in STRATEGIES
        }


def runs(known: dict[Key, dict[str, Any]], repeats: int) -> Iterator[Row]:
    """A row for each run as soon as it is over, round by round."""
    first = known["alone", STRATEGIES[0]]
    model = load(first["model"], first["dtype"]).model
    engine.batch(first, model)  # what happens once in a process would count as the first one's
    total = repeats * len(known)
    with Bar("runs", total) as bar:
        for done in range(total):
            (kind, name), others, begin = list(known)[done % len(known)], OthersShare(), perf_counter()
            row = {"round": done // len(known) + 1, "work": kind, "strategy": name}
            row |= _run(kind, known[kind, name], model)
            row |= {"wall_s": perf_counter() - begin, "others_cpu_share": others.share() or 0.0}
            bar.line(f"round {row['round']} of {repeats}, {kind}, {name}: {row['wall_s']:.1f} s")
            bar.to(done + 1, total)
            yield row


def _run(kind: str, config: dict[str, Any], model: Any) -> Row:
    if kind == "alone":
        one = engine.batch(config, model)
        return {"tokens_per_s": one.steps / one.decode_s}
    served = engine.serve(config, model)
    rate = served.output_tokens / served.wall_s
    told = {name: getattr(served, name) for name in ("preemptions", "digest", "digests")}
    return {"tokens_per_s": rate, "mean_batch_requests": served.mean_batch, **told}


def summed(rows: list[Row]) -> dict[str, Any]:
    """Of whole rounds, what the page says."""
    return {
        "rounds": rows[-1]["round"],
        "minutes": sum(row["wall_s"] for row in rows) / 60,
        "others_cpu_share": max(row["others_cpu_share"] for row in rows),
        "rows": [_strategy(name, [row for row in rows if row["strategy"] == name]) for name in STRATEGIES],
    }


def _strategy(name: str, rows: list[Row]) -> Row:
    rates = {kind: [row["tokens_per_s"] for row in rows if row["work"] == kind] for kind in WORKS}
    served = [row for row in rows if row["work"] == "together"]
    return {
        "strategy": name,
        **{f"{kind}_tokens_per_s": found for kind, found in rates.items()},
        "mean_batch_requests": served[0]["mean_batch_requests"],
        "preemptions": served[0]["preemptions"],
        "digests": sorted({row["digest"] for row in served}),
        "digests_of_requests": served[0]["digests"],
    }


def page(record: dict[str, Any]) -> str:
    rows = record["rows"]
    rate_heads = [head for kind in WORKS for head in (f"{kind}, tokens/s", "against contiguous")]
    body = [
        [row["strategy"], *_rates(row, rows[0], "alone", 1), *_rates(row, rows[0], "together", 0),
         f"{row['mean_batch_requests']:.1f}", str(row["preemptions"])]
        for row in rows
    ]  # fmt: skip
    return f"""\
# The central claim, measured

SmolLM2, bfloat16, on a CPU, real memory; medians [lowest-highest] of {record["rounds"]} rounds, seed {record["seed"]}.

    {record["command"]}

{grid(["strategy", *rate_heads, "mean batch", "preempted"], body, left={"strategy"})}
{NOTES.format(same=_same(rows))}

{record["cpu"]}, {record["cores"]} cores, others used up to {record["others_cpu_share"]:.0%} of the CPU; \
{record["minutes"]:.1f} minutes; torch {record["torch"]}; commit {record["commit"]}.
"""


def _same(rows: list[Row]) -> str:
    if len({tuple(row["digests"]) for row in rows}) == 1:
        return "all strategies' outputs are the same"
    first = rows[0]["digests_of_requests"]
    counts = [
        sum(mine != theirs for mine, theirs in zip(row["digests_of_requests"], first, strict=True)) for row in rows[1:]
    ]
    others = " and ".join(f"{count} under {row['strategy']}" for count, row in zip(counts, rows[1:], strict=True))
    return (
        f"of {len(first)} requests' outputs {others} differ from contiguous's.\n"
        "  What is computed again, as part of a prompt, is rounded otherwise in bfloat16: of two choices that are\n"
        "  nearly equal the other one may be taken"
    )


def _rates(row: Row, first: Row, key: str, digits: int) -> list[str]:
    rates = row[f"{key}_tokens_per_s"]
    ratio = median(mine / theirs for mine, theirs in zip(rates, first[f"{key}_tokens_per_s"], strict=True))
    return [f"{median(rates):,.{digits}f} [{min(rates):,.{digits}f}-{max(rates):,.{digits}f}]", f"{ratio:.2f}"]


def measure(words: list[str], repeats: int, out: Path | None) -> dict[str, Any]:
    """Every round, written as it comes; what is known at the end."""
    known = configs(words)
    facts = {
        **provenance.brief("torch"),
        "seed": known["alone", STRATEGIES[0]]["seed"],
        "command": " ".join(["python experiments/central_claim.py", *words, f"--repeats {repeats}"]),
    }
    rows: list[Row] = []
    for row in runs(known, repeats):
        rows.append(row)
        if out:
            output.write(out.with_suffix(".jsonl"), "".join(f"{json.dumps(one)}\n" for one in rows))
        if len(rows) % len(known) == 0:
            record = {**facts, **summed(rows)}
            if out:
                output.write(out, page(record))
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="NAME=VALUE", help="overrides, as for kvlab run")
    parser.add_argument("--repeats", metavar="N", type=whole_number, default=5, help="rounds (5)")
    parser.add_argument("--out", metavar="FILE", type=Path, help="also write the table to FILE, in Markdown")
    args = parser.parse_args()
    if args.out and args.out.suffix == ".jsonl":
        raise UsageError(f"--out {args.out}: allowed is the name of the page, FILE.md; the runs go to FILE.jsonl")
    output.check(args.out)
    record = measure(args.overrides, args.repeats, args.out)
    print(page(record))
    print(json.dumps(record))


if __name__ == "__main__":
    told(main)
