"""The rate that a server sustains: where mean normalized latency reaches what the paper allows."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log

from kvlab.reproduce import serving
from kvlab.reproduce.frame import Lab

ALLOWED = 0.5  # s/token, the paper's threshold
HALVINGS = 2
SATURATED = 600  # requests, all there at the start


def sustained(lab: Lab, overrides: list[str], trace_s: float, allowed: float = ALLOWED) -> float:
    """Requests/s at which mean normalized latency is `allowed` s/token, between two rates that lie 12 % apart."""
    most = _capacity(lab, overrides)
    return crossing(lambda rate: latency(lab, overrides, rate, trace_s), 0.9 * most, 1.4 * most, allowed)


def latency(lab: Lab, overrides: list[str], rate: float, trace_s: float) -> float:
    """Mean over requests of end-to-end latency over output tokens, s/token, of Poisson arrivals."""
    count = max(50, round(rate * trace_s))
    found = serving.metrics(lab, [*overrides, f"workload.rate={rate:.6g}", f"workload.num_requests={count}"])
    return float(found["normalized_latency_s"]["mean"])


def crossing(latency_at: Callable[[float], float], low: float, high: float, allowed: float) -> float:
    """Where a rising function of the rate is `allowed`: the bracket is widened, halved, and interpolated in logs."""
    at_low, at_high = latency_at(low), latency_at(high)
    while at_low > allowed:
        low, high, at_high = low / 1.5, low, at_low
        at_low = latency_at(low)
    while at_high < allowed:
        low, high, at_low = high, high * 1.5, at_high
        at_high = latency_at(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        at_middle = latency_at(middle)
        if at_middle > allowed:
            high, at_high = middle, at_middle
        else:
            low, at_low = middle, at_middle
    part = (log(allowed) - log(at_low)) / (log(at_high) - log(at_low))
    return exp(log(low) + part * (log(high) - log(low)))


def _capacity(lab: Lab, overrides: list[str]) -> float:
    """Requests/s where nobody need ever wait for somebody to come."""
    found = serving.metrics(lab, [*overrides, f"workload.num_requests={SATURATED}"])
    return float(found["num_finished"] / found["duration_s"])
