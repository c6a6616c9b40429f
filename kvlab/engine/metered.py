"""The strategy as the scheduler calls it, with the time spent in it."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Arrival, Grant, Move, Strategy, Usage


class Metered:
    """Passes the scheduler's calls on and adds up their nanoseconds in `ns`."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.ns = strategy, 0
        self.tells = type(strategy).wrote is not Strategy.wrote

    def admit(self, arrival: Arrival, new: int, leave: int) -> Grant | None:
        begin = perf_counter_ns()
        grant = self.strategy.admit(arrival, new, leave)
        self.ns += perf_counter_ns() - begin
        return grant

    def extend_all(self, seqs: list[int], lengths: list[int], uptos: list[int]) -> list[int]:
        begin = perf_counter_ns()
        rooms = self.strategy.extend_all(seqs, lengths, uptos)
        self.ns += perf_counter_ns() - begin
        return rooms

    def wrote(self, seq: int, length: int, ids: NDArray[np.int32] | None) -> None:
        begin = perf_counter_ns()
        self.strategy.wrote(seq, length, ids)
        self.ns += perf_counter_ns() - begin

    def release(self, seq: int) -> None:
        begin = perf_counter_ns()
        self.strategy.release(seq)
        self.ns += perf_counter_ns() - begin

    def usage(self) -> Usage:
        begin = perf_counter_ns()
        usage = self.strategy.usage()
        self.ns += perf_counter_ns() - begin
        return usage

    def drain(self) -> list[Move]:
        begin = perf_counter_ns()
        moves = self.strategy.drain()
        self.ns += perf_counter_ns() - begin
        return moves
