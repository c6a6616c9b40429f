"""Two clocks: the wall's, and one that counts steps and so is the same on every machine."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from the start of the run."""

    def now(self) -> float: ...

    def tick(self) -> None:
        """A step is over."""

    def wait_until(self, at: float) -> None:
        """Nothing to do before `at`; may return earlier."""


LONGEST_SLEEP_S = 1e6  # the system takes no more than some hundred years


class WallClock:
    def __init__(self) -> None:
        self.begin = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self.begin

    def tick(self) -> None:
        pass

    def wait_until(self, at: float) -> None:
        time.sleep(min(max(0.0, at - self.now()), LONGEST_SLEEP_S))


class StepClock:
    """Each step takes one second."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def tick(self) -> None:
        self.seconds += 1.0

    def wait_until(self, at: float) -> None:
        self.seconds = max(self.seconds, at)
