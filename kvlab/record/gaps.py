"""Inter-token latencies: for each token after a sequence's first, the seconds since the one before it.

Time lost to a preemption, or to standing still, lies between two tokens and so is in here. Quantiles are sketched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlab.sketch import Sketch

AT_ONCE = 16384  # values sketched together
PER_S = 10**9  # sums are kept in whole nanoseconds: the same in whatever order, however launches are taken together


class Gaps:
    """Takes gaps as they come."""

    def __init__(self) -> None:
        self.sketch, self.most, self.total_ns = Sketch(), 0.0, 0
        self._waiting, self._times, self._count = list[NDArray[np.float64]](), list[tuple[int, int]](), 0

    def add(self, gap_N: NDArray[np.float64], times: int = 1) -> None:
        """Each of them so many times."""
        self._waiting.append(gap_N)
        self._times.append((times, len(gap_N)))
        self._count += len(gap_N)
        if self._count >= AT_ONCE:
            self._flush()

    def stretch(self, last_s_B: NDArray[np.float64], end_K: NDArray[np.float64]) -> None:
        """B sequences whose last tokens came at last_s_B get one more at each of end_K."""
        self.add(end_K[0] - last_s_B)
        if len(end_K) > 1:
            self.add(end_K[1:] - end_K[:-1], len(last_s_B))

    def spread(self) -> dict[str, float | None]:
        """mean, p50, p99 and max; None if there were none."""
        self._flush()
        count = self.sketch.count
        mean = self.total_ns / PER_S / count if count else None
        return {**self.sketch.spread(), "mean": mean, "max": self.most if count else None}

    def _flush(self) -> None:
        if self._count:
            gap_N = np.concatenate(self._waiting)
            times_N = np.repeat(*np.array(self._times).T)
            self.sketch.add(gap_N, times_N)
            self.total_ns += int((np.rint(gap_N * PER_S).astype(np.int64) * times_N).sum())
            self.most = max(self.most, float(gap_N.max()))
        self._waiting.clear()
        self._times.clear()
        self._count = 0
