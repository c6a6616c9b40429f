"""Admission by how much memory will be held at the moment when most of it is.

Sequences grow by a token a step and give all back when they are done, so the peak is at the end of one of them.
Prompts are taken as computed at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.axes.history import History
from kvlab.engine.axes.running import Running
from kvlab.strategy import Arrival, Usage


def peak_growth(running: Running, final_B: NDArray[np.int64], length: int, final: int) -> int:
    """Pieces by which the most that is ever held exceeds what is held once an arrival of `length` tokens has come.

    final_B, final: tokens that each of those that run, and the arrival, will hold when done.
    """
    known_C, room_C = np.append(running.known_B, length), np.append(running.room_B, length)
    left_C = np.maximum(np.append(final_B, final) - known_C, 0)
    held_C = running.pieces(room_C)
    step_E = np.unique(left_C)  # after so many steps somebody is done
    held_EC = np.maximum(running.pieces(known_C + step_E[:, None]), held_C)
    peak = (held_EC * (left_C >= step_E[:, None])).sum(1).max()
    return max(0, int(peak - held_C.sum()))


class TruePeak:
    """Start when the peak fits. With forecast=oracle, which is needed, the expected lengths are the true ones."""

    def terms(self, arrival: Arrival, running: Running, usage: Usage) -> tuple[int, int] | None:
        if not len(running):
            return arrival.length, 0
        more = peak_growth(running, running.expected_B, arrival.length, arrival.expected)
        return arrival.length, running.tokens(more)


class PastFuture:
    """Start when the expected peak fits, each output as long as one of the last that were longer than it is now.

    Which one a sequence's number decides, so that they spread over the history and a run can be repeated. Limits
    count before `least` outputs are known, and for a sequence that is longer than them all.
    """

    def __init__(self, window: int = 1000, least: int = 20) -> None:
        self.history = History(window, least)

    def terms(self, arrival: Arrival, running: Running, usage: Usage) -> tuple[int, int] | None:
        if not len(running):
            return arrival.length, 0
        columns = (running.seq_B, running.known_B, running.prompt_B, running.limit_B)
        final_B = [self._final(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        final = self._final(arrival.seq, arrival.length, arrival.prompt, arrival.limit)
        more = peak_growth(running, np.array(final_B, np.int64), arrival.length, final)
        return arrival.length, running.tokens(more)

    def finished(self, output_len: int, limit_len: int) -> None:
        self.history.add(output_len)

    def _final(self, seq: int, known: int, prompt: int, limit: int) -> int:
        output = self.history.at(_spread(seq), known - prompt)
        return limit if output is None else min(prompt + output, limit)


def _spread(seq: int) -> float:
    """From 0 up to 1: numbers that follow each other lie far apart (multiples of the golden ratio)."""
    return (seq * 2654435769 % 2**32) / 2**32
