"""The strategy as the scheduler calls it, with the time spent in it."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Arrival, Arrivals, Counts, Grant, Move, Strategy, Usage


class Metered:
    """Passes the scheduler's calls on and adds up their nanoseconds in `ns`."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.ns, self.clock = strategy, 0, perf_counter_ns
        self.tells = type(strategy).wrote is not Strategy.wrote
        self.finds = type(strategy).lookup is not Strategy.lookup
        self.looks_ahead = type(strategy).ahead is not Strategy.ahead

    def admit(self, arrival: Arrival, new: int, leave: int) -> Grant | None:
        begin = self.clock()
        grant = self.strategy.admit(arrival, new, leave)
        self.ns += self.clock() - begin
        return grant

    def admit_all(self, arrivals: Arrivals, beyond: int) -> list[int]:
        begin = self.clock()
        rooms = self.strategy.admit_all(arrivals, beyond)
        self.ns += self.clock() - begin
        return rooms

    def fork(self, parent: int, child: Arrival) -> Grant | None:
        begin = self.clock()
        grant = self.strategy.fork(parent, child)
        self.ns += self.clock() - begin
        return grant

    def extend_all(self, seqs: list[int], length_N: Counts, upto_N: Counts) -> list[int]:
        begin = self.clock()
        rooms = self.strategy.extend_all(seqs, length_N, upto_N)
        self.ns += self.clock() - begin
        return rooms

    def wrote(self, seq: int, length: int, ids: NDArray[np.int32] | None) -> None:
        begin = self.clock()
        self.strategy.wrote(seq, length, ids)
        self.ns += self.clock() - begin

    def wrote_all(self, seqs: list[int], length_N: Counts, ids: list[NDArray[np.int32]] | None) -> None:
        begin = self.clock()
        self.strategy.wrote_all(seqs, length_N, ids)
        self.ns += self.clock() - begin

    def lookup(self, arrival: Arrival) -> int:
        begin = self.clock()
        hit = self.strategy.lookup(arrival)
        self.ns += self.clock() - begin
        return hit

    def truncate(self, seq: int, length: int) -> None:
        begin = self.clock()
        self.strategy.truncate(seq, length)
        self.ns += self.clock() - begin

    def release(self, seq: int) -> None:
        begin = self.clock()
        self.strategy.release(seq)
        self.ns += self.clock() - begin

    def release_all(self, seqs: list[int]) -> None:
        begin = self.clock()
        self.strategy.release_all(seqs)
        self.ns += self.clock() - begin

    def swap_out(self, seq: int, length: int) -> bool:
        begin = self.clock()
        done = self.strategy.swap_out(seq, length)
        self.ns += self.clock() - begin
        return done

    def swap_in(self, arrival: Arrival) -> Grant | None:
        begin = self.clock()
        grant = self.strategy.swap_in(arrival)
        self.ns += self.clock() - begin
        return grant

    def forget(self, seq: int) -> None:
        begin = self.clock()
        self.strategy.forget(seq)
        self.ns += self.clock() - begin

    def usage(self) -> Usage:
        begin = self.clock()
        usage = self.strategy.usage()
        self.ns += self.clock() - begin
        return usage

    def ahead(self) -> list[Move]:
        """Moves to carry out while the launch runs."""
        if not self.looks_ahead:
            return []
        begin = self.clock()
        self.strategy.ahead()
        moves = self.strategy.drain()
        self.ns += self.clock() - begin
        return moves

    def drain(self) -> list[Move]:
        begin = self.clock()
        moves = self.strategy.drain()
        self.ns += self.clock() - begin
        return moves
