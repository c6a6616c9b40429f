"""Who gives way when memory runs out. Between equals it is the one admitted last."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.axes.running import Running


class Newest:
    """The last one admitted, so that the oldest always finish."""

    def choose(self, running: Running, asker: int) -> int | None:
        return int(running.seq_B[-1])


class LeastOutput:
    """Who has generated least, and of those who has the longest prompt (SGLang): little decoding is lost."""

    def choose(self, running: Running, asker: int) -> int | None:
        return _first(running, running.known_B - running.prompt_B, -running.prompt_B)


class Priority:
    """Who has the lowest priority."""

    def choose(self, running: Running, asker: int) -> int | None:
        return _first(running, running.priority_B)


class MostBlocks:
    """Who has the largest room: one preemption frees most."""

    def choose(self, running: Running, asker: int) -> int | None:
        return _first(running, -running.room_B)


def _first(running: Running, *keys: NDArray[np.int64]) -> int:
    """Whose keys are smallest, the first key counting most."""
    newest_first_B = -np.arange(len(running))
    return int(running.seq_B[np.lexsort((newest_first_B, *keys[::-1]))[0]])
