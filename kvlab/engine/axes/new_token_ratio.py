"""Admission that counts on most outputs ending before their limits, the more so the longer nobody was preempted."""

from __future__ import annotations

import numpy as np

from kvlab.engine.axes.running import Running
from kvlab.strategy import Arrival, Usage


class NewTokenRatio:
    """Leave this sequence what it may still generate, and to each that runs that share of it which `ratio` says.

    The ratio falls from `start` to `start` x `lowest` over `steps` steps that decode. After a preemption it is what
    the sequences that run have generated, and `headroom` tokens each, of all they may, if that is more. It starts
    again when nobody runs. No sequence counts for more than `clip` tokens.
    """

    def __init__(
        self, start: float = 0.7, lowest: float = 0.14, steps: int = 600, clip: int = 4096, headroom: int = 20
    ) -> None:
        if not (0 <= start <= 1 and 0 <= lowest <= 1 and steps >= 1):
            raise ValueError(f"start={start}, lowest={lowest}, steps={steps}: allowed is 0 to 1, 0 to 1, 1 or more")
        self.start, self.least, self.clip, self.headroom = start, start * lowest, clip, headroom
        self.decay = (start - self.least) / steps
        self.ratio = start
        self.raises = False  # somebody was preempted since the last question

    def terms(self, arrival: Arrival, running: Running, usage: Usage) -> tuple[int, int] | None:
        if not len(running):
            self.ratio, self.raises = self.start, False
            return arrival.length, 0
        if self.raises:
            self._raise(running)
        left_B = np.minimum(running.limit_B - running.known_B, self.clip)
        own = min(arrival.limit - arrival.length, self.clip)
        return arrival.length, int(left_B.sum() * self.ratio) + own

    def stepped(self) -> None:
        self.ratio = max(self.least, self.ratio - self.decay)

    def retracted(self) -> None:
        self.raises = True

    def _raise(self, running: Running) -> None:
        generated = int((running.known_B - running.prompt_B).sum()) + self.headroom * len(running)
        allowed = int((running.limit_B - running.prompt_B).sum())
        self.ratio = min(1.0, max(self.ratio, generated / max(1, allowed)))
        self.raises = False
