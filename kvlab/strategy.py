"""What an allocation strategy is: bookkeeping over slots, in ints and numpy. No tensors, no device.

A strategy decides which slots each sequence owns. A store carries its moves out in memory, a view
shows its tables to an attention kernel, and the recorder measures it from the outside. Five methods
are needed; everything else has a default that works. docs/strategy.md tells the whole story.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvlab.arrival import Arrival, Arrivals, Counts, Grant
from kvlab.budget import LayerGroup, Memory, Pool, Usage, ceil_div
from kvlab.host_tier import HostTier
from kvlab.moves import Copy, Drop, Map, Move, SwapIn, SwapOut, Unmap, runs
from kvlab.tables import Tables

__all__ = [
    "Arrival", "Arrivals", "Copy", "Counts", "Drop", "Grant", "LayerGroup", "Map", "Memory", "Move", "Pool", "Strategy",
    "SwapIn", "SwapOut", "Tables", "Unmap", "Usage", "ceil_div", "runs",
]  # fmt: skip

HOST_BLOCK = 16  # slots of a host block, where the strategy has no blocks of its own
LOOPS = {  # and what they ask
    "admit_all": {"admit", "usage"},
    "extend_all": {"extend"},
    "release_all": {"release"},
    "wrote_all": {"wrote"},
}


class Strategy(ABC):
    """One way of managing the memory. admit, extend, fork, swap_out and swap_in succeed whole or change nothing.

    Unknown or repeated sequences raise KeyError. A wrong configuration raises ValueError in __init__.
    """

    block_size: int | None  # slots per table entry; None: one entry, the slot at which the sequence's row starts
    virtual: ClassVar[bool] = False  # slots have memory only where Map put it

    def __init_subclass__(cls) -> None:
        """Who overrides extend, but not extend_all, is asked one by one: a faster inherited one would not ask it."""
        super().__init_subclass__()
        for many, asked in LOOPS.items():
            if not asked.isdisjoint(vars(cls)) and many not in vars(cls):
                setattr(cls, many, vars(Strategy)[many])

    def __init__(self, memory: Memory, block_size: int | None = None, slots: int | None = None) -> None:
        """`slots`: addressable ones, where they differ from those that memory.bytes hold."""
        if block_size is not None and (not isinstance(block_size, int) or block_size < 1):
            raise ValueError(f"block_size={block_size}: allowed is a whole number of slots, 1 or more")
        self.memory, self.block_size = memory, block_size
        self.pools = (Pool(slots or memory.bytes // memory.token_bytes, memory.token_bytes),)
        if self.pools[0].slots // (block_size or 1) > 2**31:
            larger = "max_seqs or max_len" if slots else "pool_bytes"
            raise ValueError(f"{self.pools[0].slots:,} slots: tables of 32 bits cannot count them; lower {larger}")
        self.groups = (LayerGroup(tuple(range(len(memory.windows)))),)
        width = ceil_div(memory.max_len, block_size) if block_size else 1
        self.tables = tuple(Tables(memory.max_seqs, width) for _ in self.groups)
        self.table = self.tables[0]
        self.host = HostTier(memory.host_bytes // memory.token_bytes, block_size or HOST_BLOCK)
        self.moves: list[Move] = []
        self.counts: Counter[str] = Counter()  # what only the strategy can see; a key not there is not reported

    @property
    @abstractmethod
    def longest(self) -> int:
        """Tokens that a sequence alone is sure to reach, growing by one. Requests with longer limits are refused."""

    @abstractmethod
    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        """Room for the hit and `new` more tokens (at most all), if `leave` tokens' worth stays free or cached.

        None: not now. A strategy that reserves takes `arrival.expected` and ignores `new`. 0 <= hit < length.
        """

    @abstractmethod
    def extend(self, seq: int, length: int, upto: int) -> int | None:
        """Room for tokens [length, upto), shared with nobody; `length` are stored. The new room, never a smaller one.

        None: not now, or not at all (beyond max_len). Who asks for what he has is not refused, and nothing moves.
        """

    @abstractmethod
    def release(self, seq: int) -> None:
        """The sequence is gone; no launch in flight touches it."""

    @abstractmethod
    def usage(self) -> Usage:
        """Bytes, in O(1)."""

    # --- optional, with defaults that work

    def admit_all(self, arrivals: Arrivals, beyond: int) -> list[int]:
        """The rooms that admit gives one after another, each whole; must behave exactly as this loop.

        Up to the first refusal, or the first that with `beyond` tokens more, 0 or more, is longer than `largest`.
        """
        rooms: list[int] = []
        for arrival in arrivals.each():
            fits = arrival.length + beyond <= self.usage().largest
            grant = self.admit(arrival, arrival.length) if fits else None
            if grant is None:
                break
            rooms.append(grant.room)
        return rooms

    def extend_all(self, seqs: list[int], length_N: Counts, upto_N: Counts) -> list[int]:
        """The rooms that extend gives one after another, up to the first refusal; must behave exactly as this loop."""
        rooms: list[int] = []
        for seq, length, upto in zip(seqs, length_N.tolist(), upto_N.tolist(), strict=True):
            room = self.extend(seq, length, upto)
            if room is None:
                break
            rooms.append(room)
        return rooms

    def release_all(self, seqs: list[int]) -> None:
        """Release one after another; must behave exactly as this loop."""
        for seq in seqs:
            self.release(seq)

    def lookup(self, arrival: Arrival) -> int:
        """Tokens that admit would find in place now. Reads only."""
        return 0

    def wrote(self, seq: int, length: int, ids: NDArray[np.int32] | None) -> None:  # noqa: B027 (a hook)
        """Tokens [0, length) are stored and verified: a cache publishes them. Called only where overridden."""

    def wrote_all(self, seqs: list[int], length_N: Counts, ids: list[NDArray[np.int32]] | None) -> None:
        """Told of one after another; must behave exactly as this loop."""
        for index, (seq, length) in enumerate(zip(seqs, length_N.tolist(), strict=True)):
            self.wrote(seq, length, None if ids is None else ids[index])

    def fork(self, parent: int, child: Arrival) -> Grant | None:
        """Admit `child` with the parent's first child.length tokens in place. Here: into room of its own."""
        self.table.row[parent]  # KeyError: unknown, before anything is taken
        grant = self.admit(child, child.length)
        if grant is None:
            return None
        for index, group in enumerate(self.groups):
            start = max(grant.hit, group.first_live(child.length))
            source = self.slots(parent, index, start, child.length)
            target = self.slots(child.seq, index, start, child.length)
            self.moves += [Copy(*run, group.pool) for run in runs(source, target)]
        return Grant(child.length, grant.room)

    def truncate(self, seq: int, length: int) -> None:  # noqa: B027 (a hook)
        """Tokens from `length` on are dropped. Here nothing: the room stays and is written again."""

    def swap_out(self, seq: int, length: int) -> bool:
        """Copy the `length` tokens that are stored to the host, and release. False: no room there; nothing changed.

        Here each sequence for itself: what forks share is copied for each.
        """
        starts = [group.first_live(length) for group in self.groups]
        counts = [ceil_div(length - start, self.host.block_size) for start in starts]
        self.table.row[seq]  # KeyError: unknown, before anything is taken
        if sum(counts) > self.host.free:
            return False
        kept = [self.host.take(count) for count in counts]
        for index, (blocks, start) in enumerate(zip(kept, starts, strict=True)):
            source, target = self.slots(seq, index, start, length), self.host.slots(blocks)[: length - start]
            self.moves += [SwapOut(*run, self.groups[index].pool) for run in runs(source, target)]
        self.release(seq)
        self.host.kept[seq] = kept
        return True

    def swap_in(self, arrival: Arrival) -> Grant | None:
        """Admit a swapped sequence with all that was stored of it, arrival.length tokens, in place; hit is that length.

        None: not now. It asks before its next token, as after a fork. KeyError: it is not swapped.
        """
        kept, length = self.host.kept[arrival.seq], arrival.length
        grant = self.admit(arrival, length)
        if grant is None:
            return None
        for index, group in enumerate(self.groups):
            first = group.first_live(length)
            start = max(grant.hit, first)
            source = self.host.slots(kept[index])[start - first : length - first]
            target = self.slots(arrival.seq, index, start, length)
            self.moves += [SwapIn(*run, group.pool) for run in runs(source, target)]
        self.forget(arrival.seq)
        return Grant(length, grant.room)

    def forget(self, seq: int) -> None:
        """A swapped sequence is gone. KeyError: it is not swapped."""
        self.host.give(seq)

    def returns(self, seq: int) -> int | None:
        """Tokens' worth that release would give back; None: all its room."""
        return None

    def clear(self) -> None:  # noqa: B027 (a hook)
        """Drop whatever is cached."""

    # What only a strategy knows of where things lie; asked for pictures alone, never while a run is timed closely.

    def cached_at(self) -> Iterable[tuple[int, int, int]]:
        """(pool, slot, slots) of what is cached: usage().cached in all."""
        return ()

    def rounded_at(self) -> Iterable[tuple[int, int, int]]:
        """(pool, slot, slots) of what is held beyond every room and lies in no table's block."""
        return ()

    def mapped_at(self) -> NDArray[np.int64]:
        """[M, 2]: virtual and physical number of every page group that is mapped now, the moves drained."""
        return np.empty((0, 2), np.int64)

    def ahead(self) -> None:  # noqa: B027 (a hook)
        """Before a launch, the moves before it drained: Map, Unmap and Drop that it cannot notice, done while it runs.

        Called only where overridden. Rooms and usage stay as they are, but for `backed`. Asked twice in a row it has
        nothing to add.
        """

    # --- given

    def host_held(self) -> int:
        """Bytes of memory.host_bytes that swapped sequences have."""
        return len(self.host.users) * self.host.block_size * self.memory.token_bytes

    def drain(self) -> list[Move]:
        """The moves since the last drain, in order; tables are read after it."""
        moves, self.moves = self.moves, []
        return moves

    def slots(self, seq: int, group: int, start: int, stop: int) -> NDArray[np.int64]:
        """Slots [stop - start] of the tokens [start, stop)."""
        table, position = self.tables[group][seq], np.arange(start, stop, dtype=np.int64)
        if self.block_size is None:
            return int(table[0]) + position
        return table[position // self.block_size].astype(np.int64) * self.block_size + position % self.block_size
