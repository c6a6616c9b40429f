"""The metrics of one run, from its rows and its sequences. Definitions: docs/metrics.md."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.sequence import Sequence
from kvlab.engine.tally import Tally
from kvlab.record.goodput import Slo, served_well, share


def latency_metrics(finished: list[Sequence]) -> dict[str, Any]:
    """Seconds. Of the requests that finished: to their first token, once. Of each of their sequences: the rest."""
    times = np.array(
        [(s.request.arrival_s, s.first_token_s, s.finish_s, s.known - s.request.prompt_len) for s in finished]
    ).reshape(-1, 4)
    arrival, first, finish, output = times.T
    several, eldest = output > 1, np.array([s.branch == 0 for s in finished], bool)
    return {
        "ttft_s": spread((first - arrival)[eldest]),
        "tpot_s": spread((finish - first)[several] / (output[several] - 1)),
        "normalized_latency_s": spread((finish - arrival) / output),
    }


def spread(values: NDArray[np.float64]) -> dict[str, float | None]:
    if not len(values):
        return {"mean": None, "p50": None, "p99": None}
    p50, p99 = np.percentile(values, (50, 99))
    return {"mean": float(values.mean()), "p50": float(p50), "p99": float(p99)}


def work_metrics(tally: Tally, launches: int, num_requests: int, slo: Slo) -> dict[str, Any]:
    """Counts, and tokens each second from the first arrival to the last finish. num_requests: all that came."""
    finished = [s for s in tally.ended if s.outcome == "finished"]
    output = sum(s.known - s.request.prompt_len for s in finished)
    begin = min((s.request.arrival_s for s in tally.ended), default=0.0)
    duration = max((s.finish_s or 0.0 for s in finished), default=begin) - begin
    requests = Counter(
        {s.request.id: s.outcome if s.family is None else s.family.outcome for s in tally.ended}.values()
    )
    return {
        "num_finished": requests["finished"],
        "num_failed": requests["failed"],
        "num_output_tokens": output,
        "duration_s": duration,
        "tokens_per_s": output / duration if duration else 0.0,
        "goodput": share(served_well(tally.ended, slo), num_requests),
        "num_steps": launches,
        **tally.metrics(),
        "most_preemptions": max((s.preemptions for s in tally.ended), default=0),
        **latency_metrics(finished),
    }


def output_digest(sequences: Iterable[Sequence]) -> str:
    """A hash of all generated token ids, in order of request, whenever they were generated."""
    digest = hashlib.sha256()
    for sequence in sorted(sequences, key=lambda s: s.id):
        digest.update(np.array([sequence.id, len(sequence.output)], np.int64).tobytes())
        digest.update(sequence.output.astype(np.int32).tobytes())
    return digest.hexdigest()[:16]
