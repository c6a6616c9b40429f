"""The main numbers of one result in a few lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvlab.harness.results import flatten

SHARES = (
    ("utilization", "token state, of the pool"),
    ("waste.reservation", "reservation"),
    ("waste.internal", "internal"),
    ("waste.external", "external"),
    ("allocated_utilization", "token state, of what is held"),
)
COUNTS = (
    ("mean_batch_size", "mean batch", ",.1f"),
    ("tokens_per_s", "tokens/s", ",.1f"),
    ("ttft_s.p50", "time to first token, s, median", ",.3f"),
    ("tpot_s.p50", "time per output token, s, median", ",.4f"),
    ("num_preemptions", "preemptions", ",d"),
    ("recomputed_tokens", "tokens recomputed", ",d"),
    ("num_refused", "requests refused", ",d"),
    ("num_failed", "requests failed", ",d"),
    ("peak_committed_bytes", "committed at most, bytes", ",d"),
    ("num_ties", "close greedy choices", ",d"),
    ("output_digest", "output digest", "s"),
)

BATCH = "mean_batch_size"


def summary(result: Mapping[str, Any]) -> str:
    """A line for each number that the result has."""
    values = dict(flatten(result))
    lines = [("SIMULATED", f"no GPU was there; figures of {values.get('gpu')}")] if values.get("simulated") else []
    lines += [(words, f"{values[key]:.1%}") for key, words in SHARES if values.get(key) is not None]
    if values.get("goodput") is not None and limited(values, "config.slo"):
        lines.append(("requests within the limits", f"{values['goodput']:.1%}"))
    lines += [(words, text) for key, words, form in COUNTS if (text := _count(values, key, form))]
    if values.get("timing_valid") is False:
        lines.append(("timing", _doubt(values)))
    width = max((len(words) for words, _ in lines), default=0)
    return "\n".join(f"{words:{width}}  {value}" for words, value in lines)


def limited(values: Mapping[str, Any], slo: str) -> bool:
    """Whether there are limits to be served within; without them goodput is the share that finished."""
    return any(values.get(f"{slo}.{limit}") is not None for limit in ("ttft_s", "tpot_s"))


def _count(values: Mapping[str, Any], key: str, form: str) -> str:
    """The number, a dash with its reason, or nothing."""
    if values.get(key) is not None:
        return format(values[key], form)
    if key != BATCH or key not in values:
        return ""
    decoded_later = values.get(f"{BATCH}.whole") is not None
    return f"-  (no step decoded{' while a request waited' if decoded_later else ''})"


def _doubt(values: Mapping[str, Any]) -> str:
    share = values.get("others_cpu_share")
    why = f"others used {share:.0%} of the CPU" if share is not None else "others' CPU use is not known"
    if values.get("config.engine.clock") == "steps":
        why = "engine.clock=steps"
    if not values.get("config.timing", True):
        why = "timing=false"
    return f"not to be used ({why})"
