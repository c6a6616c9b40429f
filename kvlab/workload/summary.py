"""What a result file says of a workload: how many requests, how long, how many were refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvlab.request import Request


class Refused(NamedTuple):
    """A request that no pool could serve within max_len; its id counts among all arrivals."""

    id: int
    prompt_len: int
    output_len: int
    reason: str


def summarise(requests: list[Request], refused: list[Refused]) -> dict[str, Any]:
    """Counts over all arrivals; lengths, in tokens, over those that are not refused."""
    prompt = [request.prompt_len for request in requests]
    output = [request.output_len or 0 for request in requests]
    return {
        "num_requests": len(requests) + len(refused),
        "num_refused": len(refused),
        "prompt_tokens": spread(prompt),
        "output_tokens": spread(output),
        "total_tokens": sum(prompt) + sum(output),
    }


def spread(lengths: list[int]) -> dict[str, float | int | None]:
    """mean, p50, p99; a percentile is a length that occurs (nearest rank). None where nothing runs."""
    if not lengths:
        return {"mean": None, "p50": None, "p99": None}
    p50, p99 = np.percentile(lengths, (50, 99), method="inverted_cdf").tolist()
    return {"mean": float(np.mean(lengths)), "p50": int(p50), "p99": int(p99)}
