"""The requests of a run in order of arrival, made no earlier than somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import inf

import numpy as np
from numpy.typing import NDArray

from kvlab.request import Request

AHEAD = 4096  # times drawn at once


class Arrivals:
    """An iterator that lets itself be looked into."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._rest = iter(requests)
        self._head = next(self._rest, None)
        self.taken = 0

    def __bool__(self) -> bool:
        return self._head is not None

    @property
    def next_s(self) -> float:
        """When the next one arrives."""
        return inf if self._head is None else self._head.arrival_s

    @property
    def next_priority(self) -> int:
        return 0 if self._head is None else self._head.priority

    def take(self) -> Request:
        head, self._head = self._head, next(self._rest, None)
        assert head is not None
        self.taken += 1
        return head


class Came:
    """How many have come by when, without making them: from their times alone, rising."""

    def __init__(self, times: Iterable[float]) -> None:
        self._rest, self._before = iter(times), 0
        self._time_N: NDArray[np.float64] = np.empty(0)  # those drawn, but for `_before` that need not be looked at
        self._fresh = 0  # of them drawn last
        self._last = inf  # the last time of all, once it is known

    def by(self, now: float) -> int:
        """How many have come at or before `now`; never asked again for an earlier moment than the last one."""
        return self._before + len(self._time_N) if self._done(now) else int(self.by_each(np.array([now]))[0])

    def by_each(self, now_K: NDArray[np.float64]) -> NDArray[np.int64]:
        """The same for moments that rise; the next call asks for none before the first of these."""
        if self._done(now_K[0]):
            return np.full(len(now_K), self._before + len(self._time_N))
        while self._all_by(now_K[0]) and self._draw():
            self._before += len(self._time_N) - self._fresh
            self._time_N = self._time_N[-self._fresh :]
        while self._all_by(now_K[-1]) and self._draw():
            pass
        return self._before + np.searchsorted(self._time_N, now_K, side="right")

    def _done(self, now: float) -> bool:
        """Whether all there are have come by then."""
        return now >= self._last

    def _all_by(self, now: float) -> bool:
        return not len(self._time_N) or bool(self._time_N[-1] <= now)

    def _draw(self) -> bool:
        """Look at more of them; whether there were any."""
        more_N = np.fromiter(islice(self._rest, AHEAD), np.float64)
        if not len(more_N):
            self._last = float(self._time_N[-1]) if len(self._time_N) else -inf
        self._time_N, self._fresh = np.concatenate((self._time_N, more_N)), len(more_N)
        return bool(self._fresh)
