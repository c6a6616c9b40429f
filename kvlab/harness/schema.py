"""What result.json may hold: the version of its form, and the kind of each key that tables rely on.

A file is checked when it is read. Keys that are not listed here may hold anything: strategies bring their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

VERSION = 1  # of the form; raised when a key changes its meaning or its unit
STATUSES = ("ok", "refused", "failed")


class Kind(NamedTuple):
    """Values of one kind; null is allowed everywhere, since not every run has every figure."""

    words: str
    holds: Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = Kind("a whole number, 0 or more", _count)
AMOUNT = Kind("a number, 0 or more", lambda value: _number(value) and value >= 0)
SHARE = Kind("a number from 0 to 1", lambda value: _number(value) and -1e-9 <= value <= 1 + 1e-9)
OBJECT = Kind("an object", lambda value: isinstance(value, Mapping))
LIST = Kind("a list", lambda value: isinstance(value, list))

SPREAD = {"mean": AMOUNT, "p50": AMOUNT, "p99": AMOUNT}
KEYS: dict[str, Kind | dict[str, Kind]] = {
    "reason": TEXT, "strategy": TEXT, "executor": TEXT, "device": TEXT, "started": TEXT, "output_digest": TEXT,
    "seed": COUNT, "deterministic": FLAG, "simulated": FLAG, "timing_valid": FLAG,
    "config": OBJECT, "versions": OBJECT, "machine": OBJECT, "counts": OBJECT, "overrides": LIST,
    "capacity": OBJECT, "workload": OBJECT,
    "utilization": SHARE, "allocated_utilization": SHARE, "pool_usage": SHARE, "prefix_hit_rate": SHARE,
    "goodput": SHARE,
    "others_cpu_share": AMOUNT,
    "waste": {"reservation": SHARE, "internal": SHARE, "external": SHARE, "cached": SHARE},
    "mean_batch_size": AMOUNT, "tokens_per_s": AMOUNT, "duration_s": AMOUNT, "wall_s": AMOUNT,
    "num_requests": COUNT, "num_finished": COUNT, "num_failed": COUNT, "num_refused": COUNT, "num_steps": COUNT,
    "num_output_tokens": COUNT, "num_preemptions": COUNT, "most_preemptions": COUNT, "recomputed_tokens": COUNT,
    "num_ties": COUNT,
    "peak_committed_bytes": COUNT, "os_committed_bytes": COUNT,
    "ttft_s": SPREAD, "tpot_s": SPREAD, "normalized_latency_s": SPREAD, "itl_s": {**SPREAD, "max": AMOUNT},
}  # fmt: skip


def problem(result: Any) -> str:
    """What is wrong with the content of a result.json, in one line; empty if nothing is."""
    if not isinstance(result, Mapping):
        return f"holds {type(result).__name__}, allowed is an object"
    version = result.get("schema_version")
    if version != VERSION or isinstance(version, bool):
        older = " and is older than what wrote it" if isinstance(version, int) and version > VERSION else ""
        return f"schema_version {version!r}; this kvlab reads {VERSION}{older}"
    if result.get("status") not in STATUSES:
        return f"status {result.get('status')!r}, allowed is {', '.join(STATUSES)}"
    return next(filter(None, (_wrong(key, result.get(key), kind) for key, kind in KEYS.items())), "")


def _wrong(key: str, value: Any, kind: Kind | dict[str, Kind]) -> str:
    if value is None:
        return ""
    if isinstance(kind, Kind):
        return "" if kind.holds(value) else f"{key} {_short(value)}, allowed is {kind.words}"
    if not isinstance(value, Mapping):
        return f"{key} {_short(value)}, allowed is {OBJECT.words}"
    return next(filter(None, (_wrong(f"{key}.{part}", value.get(part), inner) for part, inner in kind.items())), "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
