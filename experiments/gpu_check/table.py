"""All stages as one page of Markdown: what ran, on what, and the figures that people look for."""

from __future__ import annotations

from typing import Any

REHEARSAL = """\
**REHEARSAL on a CPU: kernels interpreted, the driver emulated, sizes tiny. Nothing below is a measurement of a GPU.**

"""
# Columns of each stage's table: (heading, key).
COLUMNS = {
    "kernel tests": (
        ("tests", "tests"), ("passed", "passed"), ("failed", "failed"), ("skipped", "skipped"), ("error", "error"),
    ),
    "bandwidths": (
        ("op", "op"), ("attention", "attention"), ("over", "geometry"), ("block", "block_size"), ("batch", "batch"),
        ("tokens", "length"), ("us", "us_median"), ("GB/s", "gb_per_s"), ("of memory's", "share_of_bandwidth"),
    ),
    "driver calls": (
        ("page bytes", "page_bytes"), ("kernel running", "busy"), ("create us", "create_us"), ("map us", "map_us"),
        ("set access us", "set_access_us"), ("unmap us", "unmap_us"), ("release us", "release_us"),
        ("set access p99 us", "set_access_p99_us"),
    ),
    "lives": (
        ("setting", "setting"), ("layers", "layers"), ("sliced", "sliced"), ("seed", "seed"), ("maps", "maps"),
        ("tokens written", "written_tokens"),
    ),
    "growth": (
        ("map ahead", "map_ahead"), ("steps", "steps"), ("median ms", "median_ms"), ("p95 ms", "p95_ms"),
        ("p99 ms", "p99_ms"), ("max ms", "max_ms"), ("steps > 1.25 median", "spikes"),
        ("moves before", "mapped_before"), ("moves beside", "mapped_beside"),
    ),
    "end to end": (
        ("strategy", "run"), ("attention", "attention"), ("status", "status"), ("tokens/s", "tokens_per_s"),
        ("mean batch", "mean_batch"), ("utilization", "utilization"), ("steps", "steps"),
        ("step's model us", "model_us_per_step"), ("graphs", "graphs"), ("reason", "reason"),
    ),
    "page groups": (
        ("layout", "layout"), ("page bytes", "page_group_bytes"), ("status", "status"), ("tokens/s", "tokens_per_s"),
        ("mean batch", "mean_batch"), ("utilization", "utilization"), ("moves us", "moves_us_per_step"),
        ("reason", "reason"),
    ),
}  # fmt: skip
COLUMNS["device tests"] = COLUMNS["kernel tests"]


def markdown(whole: dict[str, Any]) -> str:
    stages = whole["stages"]
    parts = ["# gpu_check\n", REHEARSAL if whole["rehearsal"] else "", _summary(stages)]
    for stage in stages:
        parts.append(f"\n## {stage['stage']}\n\n{_stage(stage)}")
    return "\n".join(part for part in parts if part) + f"\n{whole['seconds']:,.0f} s in all.\n"


def _summary(stages: list[dict[str, Any]]) -> str:
    rows = [[stage["stage"], stage["status"], f"{stage['seconds']:.0f}", stage["reason"]] for stage in stages]
    return _grid(["stage", "status", "s", "reason"], rows)


def _stage(stage: dict[str, Any]) -> str:
    if not stage["rows"]:
        return "no figures\n"
    if stage["stage"] == "environment":
        return "\n".join(f"- {name}: {value}" for name, value in stage["rows"][0].items()) + "\n"
    columns = COLUMNS[stage["stage"]]
    rows = [row for row in stage["rows"] if any(key in row for _, key in columns)]
    return _grid([head for head, _ in columns], [[_cell(row.get(key)) for _, key in columns] for row in rows])


def _grid(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(text.replace("|", "/") for text in line) + " |\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)
