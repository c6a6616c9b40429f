"""Inter-token latencies: for each token after a sequence's first, the seconds since the one before it.

Time lost to a preemption, or to standing still, lies between two tokens and so is in here. Quantiles are sketched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlab.sketch import Sketch

AT_ONCE = 4096  # values sketched together
PER_S = 10**12  # sums are kept in whole picoseconds: the same in whatever order, however launches are taken together


class Gaps:
    """Takes gaps as they come."""

    def __init__(self) -> None:
        self.sketch, self.most, self.total_ps = Sketch(), 0.0, 0
        self._waiting, self._count = list[NDArray[np.float64]](), 0

    def add(self, gap_N: NDArray[np.float64]) -> None:
        self._waiting.append(gap_N)
        self._count += len(gap_N)
        if self._count >= AT_ONCE:
            self._flush()

    def stretch(self, last_s_B: NDArray[np.float64], end_K: NDArray[np.float64]) -> None:
        """B sequences whose last tokens came at last_s_B get one more at each of end_K."""
        self.add(end_K[0] - last_s_B)
        if len(end_K) > 1:
            self._take(np.diff(end_K), len(last_s_B))

    def spread(self) -> dict[str, float | None]:
        """mean, p50, p99 and max; None if there were none."""
        self._flush()
        count = self.sketch.count
        mean = self.total_ps / PER_S / count if count else None
        return {**self.sketch.spread(), "mean": mean, "max": self.most if count else None}

    def _flush(self) -> None:
        if self._count:
            self._take(np.concatenate(self._waiting), 1)
        self._waiting.clear()
        self._count = 0

    def _take(self, gap_N: NDArray[np.float64], times: int) -> None:
        self.sketch.add(gap_N, times)
        self.total_ps += int(np.rint(gap_N * PER_S).astype(np.int64).sum()) * times
        self.most = max(self.most, float(gap_N.max()))
