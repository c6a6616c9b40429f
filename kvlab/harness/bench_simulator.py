"""`kvlab bench simulator`: requests a second and memory of simulated runs, by their number of requests."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from kvlab.engine.capacity import size_text
from kvlab.errors import UsageError
from kvlab.harness import output, provenance
from kvlab.harness.compose import Composer
from kvlab.harness.progress import Bar
from kvlab.harness.table import grid
from kvlab.record.others import BUSY_ABOVE

COUNTS = (1_000, 2_000, 10_000, 100_000, 1_000_000)
PEER = (
    3_896  # requests/s, one core: Vidur 0.0.26, its vLLM scheduler, 2,000 requests of the same work on such a machine
)
WORK = [
    "executor=simulated", "model=llama_2_7b", "gpu=a100_80", "dtype=bfloat16", "max_len=2048", "strategy=paged",
    "block_size=16", "workload=fixed", "workload.prompt_len=160", "workload.output_len=140", "engine.max_seqs=128",
]  # fmt: skip
HELP = """\
simulator times whole simulated runs on one core, each in a process of its own: 160 + 140 tokens, at most 128 running.
  requests=N,... (1000,2000,10000,100000,1000000): how many; any override of a simulated run: strategy=, workload= ...
  --repeats as often, median; --out FILE.md also draws FILE.png."""


def run(args: argparse.Namespace) -> int:
    counts, overrides = _counts(args.overrides)
    _refuse(overrides, args.out)
    with Composer() as composer:
        configs = {
            count: composer.compose([*WORK, *overrides, f"workload.num_requests={count}"]).config for count in counts
        }
    found: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    total = args.repeats * len(counts)
    with Bar("runs", total) as bar:
        for done in range(total):
            count = counts[done % len(counts)]  # in turns: a noisy moment meets all of them
            found[count].append(_run(configs[count]))
            bar.to(done + 1, total)
    rows = [_row(count, runs) for count, runs in found.items()]
    facts = _facts(args, [run for runs in found.values() for run in runs])
    text = markdown(facts, rows, bool(overrides))
    if args.out:
        _write(args.out, text, rows)
    if not args.json:
        print(text)
    print(json.dumps({**facts, "rows": rows}))
    return 0


def _refuse(overrides: list[str], out: Path | None) -> None:
    """UsageError: what is measured here would not be what was asked for."""
    for line in overrides:
        name, _, value = line.partition("=")
        if name == "executor" and value != "simulated":
            raise UsageError(f"{line}: allowed here is executor=simulated")
        if name == "workload.num_requests":
            raise UsageError(f"{line}: allowed here is requests={value}")
    if out and out.suffix == ".png":
        raise UsageError(f"--out {out}: allowed is the name of the table, FILE.md; the figure goes beside it")


def markdown(facts: dict[str, Any], rows: list[dict[str, Any]], other_work: bool) -> str:
    head = ["requests", "requests/s of CPU time", "us a request", "launches", "most memory"]
    body = [
        [f"{row['requests']:,}", _spread(row), f"{1e6 / row['requests_per_cpu_s']:.1f}", f"{row['steps']:,}",
         size_text(row["peak_bytes"] // 2**20 * 2**20)]
        for row in rows
    ]  # fmt: skip
    peer = "" if other_work else _peer(rows)
    return f"""\
# `kvlab bench simulator`

Whole simulated runs on one core: block tables, accounting of every launch and all files, from the plan to the last one
written, each in a process that has carried out a short run (256 requests) before.
Median [lowest-highest] of {facts["repeats"]}.

{grid(head, body, left=set())}
{peer}{facts["cpu"]}, {facts["cores"]} cores, others used {_share(facts)} of the CPU meanwhile; Python \
{facts["python"]}; commit {facts["commit"]}; `{facts["command"]}`.
"""


def _peer(rows: list[dict[str, Any]]) -> str:
    ratios = [row["requests_per_cpu_s"] / PEER for row in rows if row["requests"] == 2_000]
    if not ratios:
        return ""
    return (
        f"Vidur 0.0.26 served 2,000 such requests at {PEER:,} requests/s on one core of such a machine (its vLLM "
        f"scheduler; blocks are counted there, without tables): {ratios[0]:.1f} times.\n\n"
    )


def _share(facts: dict[str, Any]) -> str:
    share = facts["others_cpu_share"]
    return "an unknown part" if share is None else f"{share:.0%}"


def _spread(row: dict[str, Any]) -> str:
    low, high = row["requests_per_cpu_s_spread"]
    return f"{row['requests_per_cpu_s']:,.0f} [{low:,.0f}-{high:,.0f}]"


def _row(count: int, runs: list[dict[str, Any]]) -> dict[str, Any]:
    rates = [run["requests_per_cpu_s"] for run in runs]
    return {
        "requests": count,
        "steps": runs[0]["steps"],
        "requests_per_cpu_s": median(rates),
        "requests_per_cpu_s_spread": [min(rates), max(rates)],
        "wall_s": median(run["wall_s"] for run in runs),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
    }


def _run(config: dict[str, Any]) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        command = [sys.executable, "-P", "-m", "kvlab.bench.simulator", folder]
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # numpy's products would take, and be charged for, all cores
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=one_thread)
    if done.returncode:
        raise RuntimeError(f"the process of a run ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    if wrong := result.get("wrong"):
        raise UsageError(wrong)
    return result


def _counts(words: list[str]) -> tuple[list[int], list[str]]:
    given = [word.partition("=")[2] for word in words if word.startswith("requests=")]
    text = given[-1] if given else ",".join(map(str, COUNTS))
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise UsageError(f"requests={text}: allowed are whole numbers, 1 or more, with commas between them")
    return counts, [word for word in words if not word.startswith("requests=")]


def _facts(args: argparse.Namespace, runs: list[dict[str, Any]]) -> dict[str, Any]:
    known = [run for run in runs if run["others_cpu_share"] is not None]
    wall_s = sum(run["wall_s"] for run in known)  # a clock that ticks 100 times a second says little of one short run
    share = sum(run["others_cpu_share"] * run["wall_s"] for run in known) / wall_s if known else None
    return {
        "repeats": args.repeats,
        **provenance.brief(),
        "others_cpu_share": share,
        "timing_valid": share is not None and share <= BUSY_ABOVE,
        "command": " ".join(["kvlab bench simulator", *args.overrides, f"--repeats {args.repeats}"]),
    }


def _write(path: Path, text: str, rows: list[dict[str, Any]]) -> None:
    from kvlab.harness.bench_figures import simulator

    picture = path.with_suffix(".png")
    output.write(path, f"{text}\n![requests a second, and memory]({picture.name})\n")
    with output.writing(picture):
        simulator(rows, PEER, picture)
