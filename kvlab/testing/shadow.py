"""A memory in which every slot remembers the whole prefix behind the token that it holds.

Contents lie in pieces: a slot where slots are memory themselves; where they are virtual, a part of a page
group so small that tokens and page groups both begin at one. So a token may straddle two page groups, and
one page group may lie under several rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Copy, Drop, Map, Move, Strategy, SwapIn, SwapOut, Unmap
from kvlab.testing.rule import RuleError

NOWHERE = -1


class Shadows:
    """A shadow of each of the strategy's pools; groups of layers lie in one of them."""

    def __init__(self, strategy: Strategy) -> None:
        self.pools = [Shadow(strategy, pool) for pool in range(len(strategy.pools))]
        self.of = [self.pools[group.pool] for group in strategy.groups]  # of each group of layers

    def copy(self) -> Shadows:
        """The same contents, and nothing of what a subclass does elsewhere with what is carried out."""
        made = Shadows.__new__(Shadows)
        made.pools = [shadow.copy() for shadow in self.pools]
        made.of = [made.pools[shadow.pool] for shadow in self.of]
        return made

    def apply(self, moves: Iterable[Move]) -> None:
        """Carry the moves out, in order. Raises RuleError for one that no store could."""
        for move in moves:
            self.pools[move.pool].apply(move)


class Shadow:
    """What the device's memory would hold of one pool, and what it has mapped."""

    def __init__(self, strategy: Strategy, pool: int = 0) -> None:
        self.strategy, self.pool, memory = strategy, pool, strategy.memory
        self.slots, self.per_token = strategy.pools[pool].slots, 1  # pieces of a token
        if strategy.virtual:
            piece = gcd(memory.token_bytes, memory.page_group_bytes)
            self.per_token, self.per_group = memory.token_bytes // piece, memory.page_group_bytes // piece
            self.page_groups = memory.bytes // memory.page_group_bytes
            reserved = -(-self.slots * memory.token_bytes // memory.page_group_bytes)
            self.under = np.full(reserved, NOWHERE, np.int64)  # virtual page group -> the physical one under it
            self.content = np.zeros(self.page_groups * self.per_group, np.int64)
            self.times = [0] * self.page_groups  # physical page group -> rows that it lies under
            self.mapped = 0  # page groups that lie somewhere
            self.aliased = 0  # of them those under several rows
        else:
            self.content = np.zeros(self.slots, np.int64)
        self.host_slots = memory.host_bytes // memory.token_bytes
        self.host = np.zeros(self.host_slots * self.per_token, np.int64)

    def copy(self) -> Shadow:
        """The same contents, and nothing of what a subclass does elsewhere with what is written."""
        made = Shadow.__new__(Shadow)
        vars(made).update(vars(self))
        made.content, made.host = self.content.copy(), self.host.copy()
        if self.strategy.virtual:
            made.under, made.times = self.under.copy(), list(self.times)
        return made

    # --- what a launch does

    def pieces(self, slot_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """The pieces [N * pieces of a token] of these slots, NOWHERE where nothing is mapped."""
        if not self.strategy.virtual:
            return slot_N
        virtual = (slot_N[:, None] * self.per_token + np.arange(self.per_token)).ravel()
        group = self.under[virtual // self.per_group]
        return np.where(group < 0, NOWHERE, group * self.per_group + virtual % self.per_group)

    def groups(self, slot_N: NDArray[np.int64]) -> list[int]:
        """The virtual page groups that these slots touch."""
        first_N = slot_N * self.per_token
        touched: list[int] = np.unique(
            np.concatenate((first_N, first_N + self.per_token - 1)) // self.per_group
        ).tolist()
        return touched

    def write(self, slot_N: NDArray[np.int64], value_N: NDArray[np.int64]) -> None:
        """Store a token's value in each slot. Raises RuleError where nothing is mapped."""
        piece = self.pieces(slot_N)
        if (piece < 0).any():
            slot = int(slot_N[int(np.argmax(piece < 0)) // (len(piece) // len(slot_N))])
            raise RuleError("mapped", f"a launch writes slot {slot}, under which there is no memory")
        self.content[piece] = self.spread(value_N)

    def holds(self, slot_N: NDArray[np.int64], value_N: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each slot, whether all of it holds this value."""
        piece = self.pieces(slot_N)
        same: NDArray[np.bool_] = (self.content[piece] == self.spread(value_N)) & (piece >= 0)
        if self.per_token > 1:
            same = np.logical_and.reduce(same.reshape(len(slot_N), self.per_token), axis=1)
        return same

    def spread(self, value_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """One value for each piece of each token."""
        return np.repeat(value_N, self.per_token) if self.strategy.virtual else value_N

    # --- what the store does

    def apply(self, move: Move) -> None:
        """Carry it out. Raises RuleError if no store could."""
        match move:
            case Copy(source, target, tokens, _):
                self._copy(move, source, target, tokens)
            case SwapOut(source, host, tokens, _):
                piece = self._swapped(move, source, host, tokens)
                self.host[host * self.per_token : (host + tokens) * self.per_token] = self.content[piece]
            case SwapIn(host, target, tokens, _):
                piece = self._swapped(move, target, host, tokens)
                self.content[piece] = self.host[host * self.per_token : (host + tokens) * self.per_token]
            case Map(virtual, physical, _):
                self._map(move, virtual, physical)
            case Unmap(virtual, _):
                self._unmap(move, virtual)
            case Drop(physical, _):
                self._require(self.times[physical] == 0, move, "is still mapped")
                self.content[physical * self.per_group : (physical + 1) * self.per_group] = 0

    def _map(self, move: Move, virtual: int, physical: int) -> None:
        if not self.strategy.virtual:
            raise RuleError("moves", f"{move}, but the strategy does not say that it is virtual")
        self._require(0 <= virtual < len(self.under), move, f"is outside the {len(self.under)} reserved page groups")
        self._require(0 <= physical < self.page_groups, move, f"is none of the {self.page_groups} page groups")
        self._require(self.under[virtual] < 0, move, f"{virtual} has page group {self.under[virtual]} under it already")
        self.under[virtual] = physical
        self.times[physical] += 1
        self.mapped += self.times[physical] == 1
        self.aliased += self.times[physical] == 2

    def _unmap(self, move: Move, virtual: int) -> None:
        self._require(0 <= virtual < len(self.under) and self.under[virtual] >= 0, move, "is not mapped")
        physical = int(self.under[virtual])
        self.under[virtual] = NOWHERE
        self.times[physical] -= 1
        self.mapped -= self.times[physical] == 0
        self.aliased -= self.times[physical] == 1

    def _copy(self, move: Move, source: int, target: int, tokens: int) -> None:
        self._require(tokens > 0, move, "copies nothing")
        inside = min(source, target) >= 0 and max(source, target) + tokens <= self.slots
        self._require(inside, move, f"leaves the {self.slots} slots")
        self._require(abs(source - target) >= tokens, move, "overlaps itself")
        count = np.arange(tokens, dtype=np.int64)
        read, written = self.pieces(source + count), self.pieces(target + count)
        self._require(bool((read >= 0).all() and (written >= 0).all()), move, "touches slots that are not mapped")
        self.content[written] = self.content[read]

    def _swapped(self, move: Move, first: int, host: int, tokens: int) -> NDArray[np.int64]:
        """The device's pieces of a swap."""
        self._require(tokens > 0, move, "copies nothing")
        self._require(0 <= first <= self.slots - tokens, move, f"leaves the {self.slots} slots")
        self._require(0 <= host <= self.host_slots - tokens, move, f"leaves the {self.host_slots} slots of the host")
        piece = self.pieces(first + np.arange(tokens, dtype=np.int64))
        self._require(bool((piece >= 0).all()), move, "touches slots that are not mapped")
        return piece

    def _require(self, good: bool, move: Move, what: str) -> None:
        if not good:
            raise RuleError("moves", f"{move} {what}")
