"""What several seeds say together: the median, how far they lie apart, and how sure the median is.

The interval is a percentile bootstrap of the median: 2,000 resamples with replacement, drawn from a generator that
is seeded by nothing but the number of values, so that a table made twice is the same. With three seeds it can be no
narrower than what three values tell: often it is their whole range.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES, CONFIDENCE = 2_000, 0.95
METHOD = f"{CONFIDENCE:.0%} percentile bootstrap of the median, {RESAMPLES:,} resamples, seeded"


class Estimate(NamedTuple):
    median: float
    least: float
    most: float
    low: float | None  # of the interval; None where there is one value, which says nothing of how sure it is
    high: float | None
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


def estimate(values: Sequence[float]) -> Estimate:
    """Of one value or more."""
    value_N = np.array(values, np.float64)
    middle, least, most = float(np.median(value_N)), float(value_N.min()), float(value_N.max())
    if len(value_N) == 1:
        return Estimate(middle, least, most, None, None, 1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(value_N[_draws(len(value_N))], axis=1), (tail, 1 - tail))
    return Estimate(middle, least, most, float(low), float(high), len(value_N))


@lru_cache
def _draws(count: int) -> NDArray[np.int64]:
    """Which values each resample is made of [resamples, count]."""
    return np.random.default_rng(count).integers(0, count, (RESAMPLES, count))
