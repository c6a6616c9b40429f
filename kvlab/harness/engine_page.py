"""What `kvlab bench engine` measured, as a page."""

from __future__ import annotations

from textwrap import fill
from typing import Any

from kvlab.harness.table import grid

BATCH_HEAD = ["batch", "prefill, tokens/s", "decode, tokens/s", "ms a step"]
STEP_HEAD = ["batch", "attention", "layers", "view", "sample", "moves", "rest", "the step"]


def markdown(record: dict[str, Any]) -> str:
    """The tables, and what their columns mean."""
    parts = [_head(record)]
    if rows := record["batches"]:
        parts += [_batches(rows, record["prompt_tokens"], record["output_tokens"]), _steps(rows)]
    if "workload" in record:
        parts.append(_workload(record["workload"]))
    if "start" in record:
        parts.append(_start(record["start"]))
    return "\n\n".join((*parts, _machine(record)))


def _head(record: dict[str, Any]) -> str:
    repeats = f"Medians [lowest-highest] of {record['repeats']} repeats, which took turns."
    return f"# `kvlab bench engine`\n\n{record['work']}; {record['threads']} threads. {repeats}"


def _batches(rows: list[dict[str, Any]], prompt: int, answer: int) -> str:
    body = []
    for row in rows:
        low, high = row["decode_tokens_per_s_spread"]
        rate = f"{row['decode_tokens_per_s_median']:,.1f} [{low:,.1f}-{high:,.1f}]"
        prefill = f"{row['prefill_tokens_per_s_median']:,.0f}"
        body.append([str(row["batch"]), prefill, rate, f"{row['step_ms_median']:.2f}"])
    intro = f"""\
Requests that are all there at 0, {prompt} + {answer} tokens each: the first step computes all prompts, each later one a
token of each."""
    return f"{intro}\n\n{grid(BATCH_HEAD, body, left=set()).rstrip()}"


def _steps(rows: list[dict[str, Any]]) -> str:
    names = STEP_HEAD[1:-1]
    body = [
        [str(row["batch"]), *(f"{row['step_parts_us_median'][name]:,.0f}" for name in names),
         f"{1e3 * row['step_ms_median']:,.0f}"]
        for row in rows
    ]  # fmt: skip
    return f"""\
A decode step's microseconds. layers: products, norms, rotation, gates, keys and values written, logits. view: what
attention reads, from the strategy's table. rest: the scheduler, the strategy, records, Python between.

{grid(STEP_HEAD, body, left=set()).rstrip()}"""


def _workload(found: dict[str, Any]) -> str:
    low, high = found["output_tokens_per_s_spread"]
    beside = found["peak_resident_beside_pool_bytes"] / 2**20
    return _filled(
        f"The workload: {found['output_tokens']:,} output tokens in {found['wall_s_median']:.2f} s, "
        f"{found['output_tokens_per_s_median']:,.0f} tokens/s [{low:,.0f}-{high:,.0f}]; mean batch "
        f"{found['mean_batch_requests']:.1f}; the process had {beside:,.0f} MiB at most beside a pool of "
        f"{found['pool_bytes'] / 2**20:,.0f} MiB."
    )


def _start(found: dict[str, Any]) -> str:
    low, high = found["first_output_s_spread"]
    seconds = f"{found['first_output_s_median']:.2f} s [{low:.2f}-{high:.2f}]"
    return f"From the start of `{found['command']}` to its first word: {seconds}; its files are warm."


def _machine(record: dict[str, Any]) -> str:
    busy = "" if record["timing_valid"] else " (too much for these times to be used)"
    return f"""\
{record["cpu"]}, {record["cores"]} cores, others used up to {record["others_cpu_share"]:.0%} of the CPU{busy}; torch \
{record["torch"]}; commit {record["commit"]}; `{record["command"]}`.
"""


def _filled(text: str) -> str:
    return fill(text, 120, break_on_hyphens=False)
