"""`kvlab bench engine`: tokens a second by batch, what a step consists of, 64 requests, and a start, as tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from statistics import median
from typing import TYPE_CHECKING, Any

from kvlab import resident
from kvlab.errors import UsageError
from kvlab.harness import output, provenance
from kvlab.harness.compose import Composer
from kvlab.harness.engine_page import markdown
from kvlab.harness.progress import Bar
from kvlab.record.others import BUSY_ABOVE, OthersShare

if TYPE_CHECKING:
    from kvlab.model.llama import Llama

Config = dict[str, Any]
Runs = dict[str, list[Any]]
BATCHES, PROMPT, OUTPUT = "1,8,32,64", 128, 128
PARTS = ("batches", "workload", "start")
WORK = [
    "model=smollm2", "dtype=bfloat16", "strategy=paged", "block_size=16", "max_len=2048", "engine.max_seqs=64",
    "pool_bytes=2GiB", "workload=listed", "engine.threads=2",
]  # fmt: skip
SAY = ["generate", "--prompt", "What is the capital of France?", "--max-tokens", "2"]
HELP = f"""\
engine takes NAME=VALUE: any override of a real run (strategy= attention= dtype= engine.threads= workload= ...), and
  batches={BATCHES}          requests at once, each of prompt={PROMPT} and output={OUTPUT} tokens
  parts={",".join(PARTS)}     what is measured: those batches, the workload as a whole, a process up to its first word
  without any: {" ".join(WORK)}
  Parts take turns, --repeats times. Its last line is JSON with units in the keys; with --json it is the only one."""


def run(args: argparse.Namespace) -> int:
    own, overrides = _split(args.overrides)
    batches, parts = _whole_numbers("batches", own["batches"]), _parts(own["parts"])
    (prompt,), (answer,) = (_whole_numbers(name, own[name])[:1] for name in ("prompt", "output"))
    with Composer() as composer:
        config = composer.compose([*WORK, *overrides]).config
        equal = {count: composer.compose([*WORK, *overrides, *_equal(count, prompt, answer)]).config
                 for count in batches}  # fmt: skip
    if config["executor"] != "real" or config["device"] != "cpu":
        raise UsageError("kvlab bench engine: allowed are executor=real and device=cpu")
    runs, shares = _measured(config, equal if "batches" in parts else {}, parts, overrides, args.repeats)
    facts = _facts(args, config, shares)
    record = {**facts, "prompt_tokens": prompt, "output_tokens": answer, **_record(runs, prompt)}
    text = markdown(record)
    if args.out:
        output.write(args.out, text)
    if not args.json:
        print(text)
    print(json.dumps(record))
    return 0


def _measured(
    config: Config, equal: dict[int, Config], parts: list[str], overrides: list[str], repeats: int
) -> tuple[Runs, list[float]]:
    """Everything once in each round, so that a noisy moment does not meet one thing alone; the first round warms up."""
    from kvlab.model.load import load

    model = load(config["model"], config["dtype"]).model
    works = dict(_works(config, equal, parts, overrides, model))
    runs: Runs = {name: [] for name in works}
    shares = []
    with Bar("runs", repeats * len(works)) as bar:
        for done in range(repeats * len(works)):
            name, others = list(works)[done % len(works)], OthersShare()
            runs[name].append(works[name]())
            shares.append(others.share() or 0.0)
            bar.to(done + 1, repeats * len(works))
    return runs, shares


def _works(
    config: Config, equal: dict[int, Config], parts: list[str], overrides: list[str], model: Llama
) -> Iterator[tuple[str, Callable[[], Any]]]:
    from kvlab.bench import engine

    for count, one in equal.items():
        yield f"batch {count}", lambda one=one: engine.batch(one, model)  # type: ignore[misc]
    if "workload" in parts:
        yield "workload", lambda: _with_peak(lambda: engine.serve(config, model))
    if "start" in parts:
        words = [
            *SAY,
            *(line for line in overrides if line.partition("=")[0] in ("strategy", "dtype", "engine.threads")),
        ]
        engine.first_output_s(words)  # whatever is kept on disk, is there from now on
        yield "start", lambda: engine.first_output_s(words)


def _with_peak(work: Callable[[], Any]) -> tuple[Any, int]:
    """With the most memory that this process had meanwhile, in bytes."""
    resident.forget_peak()
    done = work()
    return done, resident.peak_bytes() or 0


def _record(runs: Runs, prompt: int) -> dict[str, Any]:
    batches = [
        _batch_row(int(name.split()[1]), prompt, each) for name, each in runs.items() if name.startswith("batch")
    ]
    record: dict[str, Any] = {"batches": batches}
    if served := runs.get("workload"):
        record["workload"] = _workload_row(served)
    if starts := runs.get("start"):
        record["start"] = {
            "command": f"kvlab {' '.join(SAY[:2])} ...",
            "first_output_s_median": median(starts),
            "first_output_s_spread": [min(starts), max(starts)],
        }
    return record


def _batch_row(count: int, prompt: int, runs: list[Any]) -> dict[str, Any]:
    prefill = [count * prompt / one.prefill_s for one in runs]
    decode = [count * one.steps / one.decode_s for one in runs]
    return {
        "batch": count,
        "prefill_tokens_per_s_median": median(prefill),
        "prefill_tokens_per_s_spread": [min(prefill), max(prefill)],
        "decode_tokens_per_s_median": median(decode),
        "decode_tokens_per_s_spread": [min(decode), max(decode)],
        "step_ms_median": median(1e3 * one.decode_s / one.steps for one in runs),
        "step_parts_us_median": {part: median(one.parts_us[part] for one in runs) for part in runs[0].parts_us},
    }


def _workload_row(runs: list[Any]) -> dict[str, Any]:
    """runs: each with the most memory that the process had, in bytes."""
    first, rates = runs[0][0], [one.output_tokens / one.wall_s for one, _ in runs]
    return {
        "output_tokens": first.output_tokens,
        "wall_s_median": median(one.wall_s for one, _ in runs),
        "output_tokens_per_s_median": median(rates),
        "output_tokens_per_s_spread": [min(rates), max(rates)],
        "mean_batch_requests": first.mean_batch,
        "pool_bytes": first.pool_bytes,
        "peak_resident_beside_pool_bytes": max(peak - one.pool_bytes for one, peak in runs),
        "output_digests": sorted({one.digest for one, _ in runs}),
    }


def _split(words: list[str]) -> tuple[dict[str, str], list[str]]:
    own = {"batches": BATCHES, "prompt": str(PROMPT), "output": str(OUTPUT), "parts": ",".join(PARTS)}
    given = {word.partition("=")[0]: word.partition("=")[2] for word in words if word.partition("=")[0] in own}
    return own | given, [word for word in words if word.partition("=")[0] not in own]


def _whole_numbers(name: str, text: str) -> list[int]:
    numbers = [int(part) if part.isascii() and part.isdigit() else 0 for part in text.split(",")]
    least = 2 if name == "output" else 1  # the first token comes with the prompt, and a rate is that of the others
    if min(numbers) < least or (name in ("prompt", "output") and len(numbers) > 1):
        allowed = "a whole number" if name in ("prompt", "output") else "whole numbers with commas between them"
        raise UsageError(f"{name}={text}: allowed is {allowed}, {least} or more")
    return numbers


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if wrong := [part for part in parts if part not in PARTS]:
        raise UsageError(f"parts={wrong[0]}: allowed is {', '.join(PARTS)}")
    return parts


def _equal(count: int, prompt: int, answer: int) -> list[str]:
    return [
        "workload=fixed", f"workload.num_requests={count}", f"workload.prompt_len={prompt}",
        f"workload.output_len={answer}", f"engine.max_seqs={count}",
    ]  # fmt: skip


def _facts(args: argparse.Namespace, config: Config, shares: list[float]) -> dict[str, Any]:
    return {
        "bench": "engine",
        "work": f"{config['model']['name']}, {config['dtype']}, strategy {config['strategy']['name']}",
        "threads": config["engine"]["threads"],
        "repeats": args.repeats,
        **provenance.brief("torch"),
        "others_cpu_share": max(shares),
        "timing_valid": max(shares) <= BUSY_ABOVE,
        "command": " ".join(["kvlab bench engine", *args.overrides, f"--repeats {args.repeats}"]),
    }
