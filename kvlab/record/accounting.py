"""Where every byte of the pool is: one arithmetic for all strategies, computed outside them.

    pool = token state + reservation + internal + cached + external

token state: slots written. reservation: slots not yet written that their sequence will use. internal: slots
given to a sequence that will never use them (its true length is known only afterwards, or to the trace).
cached: owned by nobody, kept for a hit. external: everything else: free, rounded up beyond every room, and
what the pool's size leaves over. After Fig. 2 of the PagedAttention paper (Kwon et al., SOSP 2023, 3.1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.launch import packed
from kvlab.strategy import Memory, Usage


class AccountingError(AssertionError):
    """A strategy's books do not add up: its figures would be worthless."""


class Split(NamedTuple):
    """Bytes; the five add up to the pool."""

    token_state: int
    reservation: int
    internal: int
    cached: int
    external: int


def split(
    memory: Memory,
    usage: Usage,
    stored_B: NDArray[np.int64],
    room_B: NDArray[np.int64],
    final_B: NDArray[np.int64],
    distinct: int | None = None,
) -> Split:
    """The split of memory.bytes with these sequences live; counts in tokens, final_B what each will have used.

    Where a final length is not known (-1), all its unused room counts as reservation. distinct: tokens stored, those
    in one slot counted once; it must be given where slots that nobody has written are shared (a fork that has not
    asked for room of its own yet), None: whatever is shared is written.
    """
    if final_B.min(initial=0) < 0:
        final_B = np.where(final_B < 0, room_B, final_B)
    used_B = np.maximum(np.minimum(room_B, final_B), stored_B)
    stored, room, used = np.add.reduce((stored_B, room_B, used_B), axis=1).tolist()
    reservation = used - stored
    internal = room - stored - reservation
    shared = room * memory.token_bytes - (usage.held - usage.rounded)
    token_state = stored * memory.token_bytes - shared
    if distinct is not None:
        token_state, unwritten = distinct * memory.token_bytes, room - distinct - shared // memory.token_bytes
        internal = min(internal, unwritten)
        reservation = unwritten - internal
    external = memory.bytes - usage.held - usage.cached + usage.rounded
    parts = Split(token_state, reservation * memory.token_bytes, internal * memory.token_bytes, usage.cached, external)
    _check(memory, usage, parts, shared)
    return parts


def distinct_tokens(
    table_RP: NDArray[np.int32], row_B: NDArray[np.int64], stored_B: NDArray[np.int64], block_size: int
) -> int:
    """Slots that are written: of a block in several tables, as many as the longest of their sequences has."""
    of_N, index_N = packed(np.arange(len(row_B)), np.zeros_like(stored_B), -(-stored_B // block_size))
    written_N = np.minimum(stored_B[of_N] - index_N * block_size, block_size)
    _, place_N = np.unique(table_RP[row_B[of_N], index_N], return_inverse=True)
    most = np.zeros(int(place_N.max(initial=-1)) + 1, np.int64)
    np.maximum.at(most, place_N, written_N)
    return int(most.sum())


def _check(memory: Memory, usage: Usage, parts: Split, shared: int) -> None:
    fits = usage.held + usage.cached <= memory.bytes and shared >= 0
    if sum(parts) != memory.bytes or min(parts) < 0 or not fits:
        raise AccountingError(f"the pool of {memory.bytes:,} bytes is not {parts} with {usage} and {shared:,} shared")


class Identity:
    """held + cached + free never changes, whatever happens."""

    def __init__(self, memory: Memory, usage: Usage) -> None:
        self.capacity = usage.held + usage.cached + usage.free
        if usage.held or self.capacity > memory.bytes:
            raise AccountingError(f"a new strategy over {memory.bytes:,} bytes says {usage}")

    def check(self, usage: Usage) -> None:
        if usage.held + usage.cached + usage.free != self.capacity:
            raise AccountingError(f"held + cached + free was {self.capacity:,} bytes and is now that of {usage}")
        if usage.backed is not None and usage.backed < usage.held:
            raise AccountingError(f"{usage.held:,} bytes are held, {usage.backed:,} are backed by memory")

    def check_empty(self, usage: Usage) -> None:
        """No sequence is live, so nothing is held."""
        self.check(usage)
        if usage.held:
            raise AccountingError(f"every sequence has left and {usage.held:,} bytes are still held")
