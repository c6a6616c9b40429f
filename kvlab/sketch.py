"""Quantiles of a stream in little memory: counts of values in buckets whose bounds grow by a constant factor.

Every quantile is off by at most ERROR of its value, however many values there were; after DDSketch (Masson, Rim
and Lee, VLDB 2019). Means are exact.
"""

from __future__ import annotations

from collections import Counter
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

ERROR = 0.005  # relative, of a quantile
_GROWTH = log((1 + ERROR) / (1 - ERROR))
_SMALLEST = 1e-9  # smaller values count as 0


class Sketch:
    """Of values that are 0 or more."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.zeros = self.count = 0
        self.total = 0.0

    def add(self, values: NDArray[np.float64], times_N: NDArray[np.int64] | None = None) -> None:
        """Each of them once, or so many times."""
        large = values > _SMALLEST
        if times_N is None:
            self.count += len(values)
            self.zeros += len(values) - int(np.count_nonzero(large))
            self.total += float(values.sum())
        else:
            self.count += int(times_N.sum())
            self.zeros += int(times_N[~large].sum())
            self.total += float((values * times_N).sum())
            times_N = times_N[large]
        if not large.any():
            return
        bucket_N = np.ceil(np.log(values[large]) / _GROWTH).astype(np.int64)
        least = int(bucket_N.min())
        counts = np.bincount(bucket_N - least, times_N)
        for index in np.flatnonzero(counts).tolist():
            self.buckets[least + index] += int(counts[index])

    def quantile(self, share: float) -> float | None:
        """The value below which `share` of them lie (nearest rank); None if there were none."""
        if not self.count:
            return None
        rank = max(1, ceil(share * self.count)) - self.zeros
        if rank <= 0:
            return 0.0
        for index in sorted(self.buckets):
            rank -= self.buckets[index]
            if rank <= 0:
                break
        return float(2 * np.exp(index * _GROWTH) / (1 + np.exp(_GROWTH)))  # relatively as far from both bounds

    def spread(self) -> dict[str, float | None]:
        """mean, p50 and p99."""
        mean = self.total / self.count if self.count else None
        return {"mean": mean, "p50": self.quantile(0.5), "p99": self.quantile(0.99)}
