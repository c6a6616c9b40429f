"""The metrics of one run, from its rows and its sequences. Definitions: docs/metrics.md."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.lanes import Sequence
from kvlab.engine.scheduler import Tally
from kvlab.record.recorder import Step

Columns = dict[str, NDArray[np.float64]]


def columns(rows: list[Step]) -> Columns:
    data = np.array(rows, np.float64).reshape(len(rows), len(Step._fields))
    return {name: data[:, index] for index, name in enumerate(Step._fields)}


def launches(rows: Columns) -> int:
    """Rows in which somebody ran; the others are waits for the next arrival."""
    return int((rows["running"] > 0).sum())


def saturated(rows: Columns) -> int:
    """Steps until the waiting queue last emptied: the last one in which somebody still waited, and all before it."""
    waiting = np.flatnonzero(rows["waiting"] > 0)
    return int(waiting[-1]) + 1 if len(waiting) else 0


def memory_metrics(rows: Columns, pool_bytes: int) -> dict[str, Any]:
    """Shares of the pool, time-weighted: over the saturated window and, as *.whole, over the run.

    Where nobody ever waited, the window is the whole run, and saturated_steps is 0.
    """
    window = saturated(rows)
    metrics: dict[str, Any] = {"saturated_steps": window, "saturated_s": float(rows["dt_s"][:window].sum())}
    whole = len(rows["dt_s"])
    for suffix, stop in (("", window or whole), (".whole", whole)):
        part = {name: column[:stop] for name, column in rows.items()}
        mean = {name: weighted(part[name], part["dt_s"]) for name in (*WASTE, "token_state", "held")}
        metrics["utilization" + suffix] = mean["token_state"] / pool_bytes
        metrics["allocated_utilization" + suffix] = mean["token_state"] / mean["held"] if mean["held"] else 0.0
        metrics["pool_usage" + suffix] = mean["held"] / pool_bytes
        metrics["waste" + suffix] = {name: mean[name] / pool_bytes for name in WASTE}
        decoding = part["running"][part["decode_seqs"] > 0]
        metrics["mean_batch_size" + suffix] = float(decoding.mean()) if len(decoding) else None
        metrics["max_batch_size" + suffix] = int(part["running"].max()) if stop else 0
    metrics["prefill_only_steps"] = int(((rows["decode_seqs"] == 0) & (rows["running"] > 0)).sum())
    metrics["peak_committed_bytes"] = int(rows["backed"].max(initial=0))
    metrics["os_committed_bytes"] = int(rows["os_committed"].max(initial=0))
    return metrics


WASTE = ("reservation", "internal", "external", "cached")


def weighted(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    total = float(weights.sum())
    return float((values * weights).sum() / total) if total else 0.0


def latency_metrics(finished: list[Sequence]) -> dict[str, Any]:
    """Seconds, over the requests that finished."""
    times = np.array(
        [(s.request.arrival_s, s.first_token_s, s.finish_s, s.known - s.request.prompt_len) for s in finished]
    ).reshape(-1, 4)
    arrival, first, finish, output = times.T
    several = output > 1
    return {
        "ttft_s": spread(first - arrival),
        "tpot_s": spread((finish - first)[several] / (output[several] - 1)),
        "normalized_latency_s": spread((finish - arrival) / output),
    }


def spread(values: NDArray[np.float64]) -> dict[str, float | None]:
    if not len(values):
        return {"mean": None, "p50": None, "p99": None}
    p50, p99 = np.percentile(values, (50, 99))
    return {"mean": float(values.mean()), "p50": float(p50), "p99": float(p99)}


def work_metrics(tally: Tally, rows: Columns) -> dict[str, Any]:
    """Counts, and tokens each second from the first arrival to the last finish."""
    finished = [s for s in tally.ended if s.outcome == "finished"]
    output = sum(s.known - s.request.prompt_len for s in finished)
    begin = min((s.request.arrival_s for s in tally.ended), default=0.0)
    duration = max((s.finish_s or 0.0 for s in finished), default=begin) - begin
    return {
        "num_finished": len(finished),
        "num_failed": sum(s.outcome == "failed" for s in tally.ended),
        "num_output_tokens": output,
        "duration_s": duration,
        "tokens_per_s": output / duration if duration else 0.0,
        "num_steps": launches(rows),
        "num_preemptions": tally.preemptions,
        "recomputed_tokens": tally.recomputed_tokens,
        "prefix_hit_rate": tally.hit_tokens / tally.input_tokens if tally.input_tokens else 0.0,
        **latency_metrics(finished),
    }


def output_digest(sequences: Iterable[Sequence]) -> str:
    """A hash of all generated token ids, in order of request, whenever they were generated."""
    digest = hashlib.sha256()
    for sequence in sorted(sequences, key=lambda s: s.id):
        digest.update(np.array([sequence.id, len(sequence.output)], np.int64).tobytes())
        digest.update(sequence.output.astype(np.int32).tobytes())
    return digest.hexdigest()[:16]
