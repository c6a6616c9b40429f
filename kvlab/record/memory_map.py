"""The memory map of a run: what is at an address of the pool, moment by moment.

Addresses are physical, evenly spaced over the pool's bytes: under a strategy with virtual memory, those of its page
groups, wherever they are mapped. Moments are bounded, whatever the length of the run: where there would be more than
asked for, every other one is dropped and the next ones lie twice as far apart. What is seen follows from tables, rooms
and lengths; only what nobody owns is a strategy's word (cached_at, rounded_at, mapped_at).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.launch import packed
from kvlab.record.seen import Places
from kvlab.strategy import Strategy

FILE = "memory_map.npz"
ADDRESSES = 256
STATES = (  # of an address; where several sequences share it, the last one of theirs counts
    "unbacked", "mapped_unused", "free", "cached", "rounded", "internal", "reservation", "token_state",
)  # fmt: skip
UNBACKED, MAPPED_UNUSED, FREE, CACHED, ROUNDED, INTERNAL, RESERVATION, TOKEN_STATE = range(len(STATES))

States = NDArray[np.uint8]
Counts = NDArray[np.int64]


class Live(NamedTuple):
    """Sequences on the device, in columns; tokens."""

    row_B: Counts  # of the first layer group's table
    id_B: Counts
    stored_B: Counts
    final_B: Counts  # what each will have used: the part of its room behind that is never used
    room_B: Counts


class MemoryMap:
    """Looked at after each step; keeps at most `moments` of them."""

    def __init__(self, strategy: Strategy, moments: int, addresses: int = ADDRESSES) -> None:
        self.strategy, self.moments = strategy, moments
        size = strategy.memory.bytes
        self.byte_A = ((2 * np.arange(addresses, dtype=np.int64) + 1) * size) // (2 * addresses)
        self.time_s: list[float] = []
        self.states: list[States] = []
        self.due_s = self.every_s = 0.0

    @classmethod
    def of(cls, strategy: Strategy, moments: int) -> MemoryMap | None:
        """None where no moments are asked for."""
        return cls(strategy, moments) if moments else None

    def look(self, now: float, lanes: Places, lane_B: Counts, stored_B: Counts) -> None:
        """Keep this moment, if one is due; stored_B: tokens that each lane on the device has stored."""
        if now < self.due_s:
            return
        room_B, final_B = lanes.room[lane_B], lanes.final[lane_B]
        live = Live(lanes.row[lane_B], lanes.id[lane_B], stored_B, np.where(final_B < 0, room_B, final_B), room_B)
        self.time_s.append(now)
        self.states.append(states(self.strategy, self.byte_A, live))
        if len(self.time_s) > self.moments:
            del self.time_s[-2::-2], self.states[-2::-2]
            self.every_s = (self.time_s[-1] - self.time_s[0]) / len(self.time_s)
        self.due_s = now + self.every_s

    def look_on(self, end_K: NDArray[np.float64], lanes: Places, lane_B: Counts, stored_B: Counts) -> None:
        """The same for steps that end at end_K, in each of which each of these sequences writes one token more.

        The first of them was looked at, and so was stored_B.
        """
        index = 1
        while (index := max(index, int(np.searchsorted(end_K, self.due_s)))) < len(end_K):
            self.look(float(end_K[index]), lanes, lane_B, stored_B + index)
            index += 1

    def write(self, path: Path) -> None:
        """time_s [moments], state [moments, addresses] (an index of `names`), byte [addresses], pool_bytes."""
        states = np.array(self.states, np.uint8).reshape(len(self.time_s), len(self.byte_A))
        np.savez_compressed(
            path,
            time_s=np.array(self.time_s),
            state=states,
            byte=self.byte_A,
            pool_bytes=self.strategy.memory.bytes,
            names=np.array(STATES),
        )


def states(strategy: Strategy, byte_A: Counts, live: Live) -> States:
    """What is at each of these bytes of the pool."""
    if not strategy.virtual:
        return _of_slots(strategy, byte_A // strategy.memory.token_bytes, live)
    size, code_A = strategy.memory.page_group_bytes, np.full(len(byte_A), UNBACKED, np.uint8)
    pair_M2 = strategy.mapped_at()
    pair_M2 = pair_M2[np.argsort(pair_M2[:, 1], kind="stable")]
    group_A = byte_A // size
    first_A, last_A = (np.searchsorted(pair_M2[:, 1], group_A, side=side) for side in ("left", "right"))
    at_X, pair_X = packed(np.arange(len(byte_A)), first_A, last_A)  # several, where sequences share a page group
    slot_X = (pair_M2[pair_X, 0] * size + byte_A[at_X] % size) // strategy.memory.token_bytes
    code_X = _of_slots(strategy, slot_X, live)
    np.maximum.at(code_A, at_X, np.where(code_X == FREE, np.uint8(MAPPED_UNUSED), code_X))
    return code_A


def _of_slots(strategy: Strategy, slot_X: Counts, live: Live) -> States:
    code_X = _in_rows(strategy, slot_X, live) if strategy.block_size is None else _in_blocks(strategy, slot_X, live)
    for code, ranges in ((CACHED, strategy.cached_at()), (ROUNDED, strategy.rounded_at())):
        code_X[(code_X == FREE) & _inside(slot_X, ranges)] = code
    return code_X


def _in_rows(strategy: Strategy, slot_X: Counts, live: Live) -> States:
    """Each sequence a row that begins at the slot in its table."""
    if not len(live.row_B):
        return np.full(len(slot_X), FREE, np.uint8)
    start_B = strategy.table.data[live.row_B, 0].astype(np.int64)
    order_B = np.argsort(start_B)
    before_X = np.searchsorted(start_B[order_B], slot_X, side="right")
    of_X = order_B[np.maximum(before_X, 1) - 1]
    code_X = _codes(slot_X - start_B[of_X], live.stored_B[of_X], live.final_B[of_X], live.room_B[of_X])
    code_X[before_X == 0] = FREE
    return code_X


def _in_blocks(strategy: Strategy, slot_X: Counts, live: Live) -> States:
    """Blocks in tables; one that several sequences share holds what the furthest of them has."""
    table, size = strategy.table, strategy.block_size or 1
    count_B = table.filled[live.row_B]
    start_B = np.fromiter((table.start[seq] for seq in live.id_B.tolist()), np.int64, len(count_B))
    of_N, index_N = packed(np.arange(len(count_B)), start_B, count_B)
    block_N = table.data[live.row_B[of_N], index_N]
    asked_U, at_X = np.unique(slot_X // size, return_inverse=True)
    asked_P = np.zeros(int(max(slot_X.max(initial=0) // size, block_N.max(initial=0))) + 1, np.bool_)
    asked_P[asked_U] = True
    kept_N = asked_P[block_N]
    of_N, at_N, first_N = of_N[kept_N], np.searchsorted(asked_U, block_N[kept_N]), index_N[kept_N] * size
    tokens = np.full((3, len(asked_U)), -1, np.int64)  # stored, final, room behind a block's start; -1: in no table
    for tokens_U, length_B in zip(tokens, (live.stored_B, live.final_B, live.room_B), strict=True):
        np.maximum.at(tokens_U, at_N, np.maximum(length_B[of_N] - first_N, 0))
    stored_X, final_X, room_X = tokens[:, at_X]
    code_X = _codes(slot_X % size, stored_X, final_X, room_X)
    code_X[(code_X == FREE) & (room_X >= 0)] = ROUNDED
    return code_X


def _codes(offset_X: Counts, stored_X: Counts, final_X: Counts, room_X: Counts) -> States:
    """By how far a slot lies behind its sequence's, or its block's, first; FREE beyond the room."""
    cases = [offset_X < stored_X, offset_X < np.minimum(final_X, room_X), offset_X < room_X]
    return np.select(cases, [np.uint8(TOKEN_STATE), np.uint8(RESERVATION), np.uint8(INTERNAL)], np.uint8(FREE))


def _inside(slot_X: Counts, ranges: Iterable[tuple[int, int, int]]) -> NDArray[np.bool_]:
    """Whether each slot lies in one of the (pool, slot, slots) of the first pool, no two of which overlap."""
    range_M2 = np.array([(slot, slots) for pool, slot, slots in ranges if pool == 0], np.int64).reshape(-1, 2)
    if not len(range_M2):
        return np.zeros(len(slot_X), np.bool_)
    start_M, slots_M = range_M2[np.argsort(range_M2[:, 0])].T
    at_X = np.searchsorted(start_M, slot_X, side="right") - 1
    inside: NDArray[np.bool_] = (at_X >= 0) & (slot_X < (start_M + slots_M)[at_X])
    return inside
