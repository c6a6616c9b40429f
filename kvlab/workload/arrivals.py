"""When requests arrive: all at once, as a Poisson process, or as the trace file says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, islice, repeat
from random import Random

from kvlab.errors import UsageError
from kvlab.workload.knobs import Config, choice, number, positive
from kvlab.workload.rows import Rows

KINDS = ("all_at_0", "poisson", "file")


def kind(config: Config) -> str:
    """The kind of arrivals; a rate without one means Poisson."""
    default = "all_at_0" if config.get("rate") is None else "poisson"
    chosen = choice(config, "arrivals", KINDS, default)
    if chosen == "poisson" and config.get("rate") is None:
        raise UsageError("workload.arrivals=poisson: needs workload.rate, in requests per second")
    if chosen != "poisson" and config.get("rate") is not None:
        raise UsageError(f"workload.rate={config['rate']}: only arrivals=poisson have a rate, not {chosen}")
    if chosen != "file" and positive(config, "time_scale", 1.0) != 1:
        raise UsageError(f"workload.time_scale={config['time_scale']}: only arrivals=file have gaps to scale")
    return chosen


def arranged(config: Config, rows: Rows, seed: int) -> tuple[Rows, list[float]]:
    """The rows in order of arrival, and when each arrives: seconds, the first at 0."""
    if rows.turn is None or rows.family is None or config.get("think_s") is None:
        return rows, times(config, rows, seed)
    # The families begin as requests would; a turn comes think_s after the one before it, whenever that one ends.
    first: dict[int, int] = {}
    for index, family in enumerate(rows.family):
        first.setdefault(family, index)
    begins = dict(zip(first, times(config, rows.pick(list(first.values())), seed), strict=True))
    think_s = number(config, "think_s", 0, 1e9)
    when = [
        begins[family] + think_s * (turn - rows.turn[first[family]])
        for family, turn in zip(rows.family, rows.turn, strict=True)
    ]
    order = sorted(range(len(rows)), key=when.__getitem__)
    return rows.pick(order), [when[index] for index in order]


def times(config: Config, rows: Rows, seed: int) -> list[float]:
    """Arrival of each row in seconds, rising, the first at 0."""
    chosen = kind(config)
    if chosen == "poisson":
        return poisson(len(rows), positive(config, "rate", 1.0), seed)
    if chosen == "file":
        return from_file(rows, positive(config, "time_scale", 1.0))
    return [0.0] * len(rows)


def poisson(n: int, rate: float, seed: int) -> list[float]:
    """The first n of `poisson_times`."""
    return list(islice(poisson_times(rate, seed), n))


def poisson_times(rate: float, seed: int) -> Iterator[float]:
    """Gaps of mean 1/rate. A seed has one pattern, which another rate only stretches."""
    rng = Random(f"{seed} arrivals")
    return accumulate((rng.expovariate(1.0) / rate for _ in repeat(None)), initial=0.0)


def from_file(rows: Rows, time_scale: float) -> list[float]:
    if rows.time_s is None:
        raise UsageError(
            f"workload.arrivals=file: {rows.origin['source']} has no times; "
            "give a timestamped trace as workload.path, or use all_at_0 or poisson"
        )
    first = rows.time_s[0]
    # Dates are stored to a quarter of a microsecond at best; finer digits would be noise.
    return [round((time - first) * time_scale, 6) for time in rows.time_s]
