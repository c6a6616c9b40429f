"""A row for each step: who ran, and where the pool's bytes were while it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.launch import Launch
from kvlab.record.accounting import Identity, distinct_tokens, split
from kvlab.record.disjoint import Disjoint
from kvlab.record.memory_map import MemoryMap
from kvlab.record.seen import Places, Seen
from kvlab.record.series import Block, Everything, Series
from kvlab.record.step import Step
from kvlab.record.totals import Totals
from kvlab.strategy import Strategy

WAITING, TOKEN_STATE, RESERVATION = map(Step._fields.index, ("waiting", "token_state", "reservation"))


class Keeps(Protocol):
    """What is kept of the rows."""

    def add(self, block: Block) -> None: ...

    def rows(self, columns: int) -> Block: ...


class Recorder:
    """Rows of one run, in columns. `committed` reads from the operating system what is really backed, in bytes;
    None: there is no memory, what the strategy accounts for stands in its place.
    """

    def __init__(
        self,
        strategy: Strategy,
        committed: Callable[[], int] | None,
        keeps: Keeps | None = None,
        memory_map: MemoryMap | None = None,
    ) -> None:
        self.strategy, self.committed, self.map = strategy, committed, memory_map
        self.identity, self.disjoint = (
            Identity(strategy.memory, strategy.usage()),
            Disjoint(strategy, every_admission=committed is not None),
        )
        self.totals, self.kept = Totals(), keeps or Everything()
        self.series = Series(len(Step._fields), self._take)
        self.last_s = 0.0

    @property
    def rows(self) -> list[Step]:
        """What is kept, as steps."""
        self.series.flush()
        rows = self.kept.rows(len(Step._fields)).tolist()
        return [Step(*row[:2], *map(int, row[2:])) for row in rows]

    def step(self, scheduler: Seen, launch: Launch, now: float) -> None:
        new_B = launch.stop_B - launch.start_B
        lanes, lane_B = scheduler.lanes, launch.lane_B
        newest_B = lanes.known[lane_B] - launch.start_B == 1  # drafts behind it aside
        decode_B = launch.samples_B & newest_B & (launch.start_B >= lanes.prompt[lane_B])
        prefill = int(new_B[~decode_B].sum())
        self._row(scheduler, now, len(new_B), prefill, int(decode_B.sum()), launch)

    def stretch(self, scheduler: Seen, launch: Launch, end_K: NDArray[np.float64], queued_K: NDArray[np.int64]) -> None:
        """`launch`, and those like it that end at `end_K`, each of the same sequences, one token further.

        Nothing else changes in them, but for who waits: of every sequence's room one slot more is written in each.
        """
        row = self._measured(scheduler, float(end_K[0]), len(launch.lane_B), 0, len(launch.lane_B), launch)
        rows = np.empty((len(end_K), len(row)))
        rows[:] = row
        rows[:, 0] = end_K
        rows[1:, 1] = end_K[1:] - end_K[:-1]
        rows[:, WAITING] = queued_K
        written = len(launch.lane_B) * self.strategy.memory.token_bytes
        written_K = np.arange(0, len(end_K) * written, written)
        rows[:, TOKEN_STATE] += written_K
        rows[:, RESERVATION] -= written_K
        self.series.extend(rows)
        self.last_s = float(end_K[-1])
        if self.map is not None:
            self.map.look_on(end_K, scheduler.lanes, *self._stored(scheduler.lanes, launch))

    def idle(self, scheduler: Seen, now: float) -> None:
        """Nothing ran until `now`."""
        self._row(scheduler, now, 0, 0, 0, None)

    def end(self) -> None:
        """Everybody has left. AccountingError: something is still held."""
        self.series.flush()
        self.identity.check_empty(self.strategy.usage())

    def _row(self, scheduler: Seen, now: float, running: int, prefill: int, decode: int, launch: Launch | None) -> None:
        self.series.append(self._measured(scheduler, now, running, prefill, decode, launch))
        self.last_s = now

    def _measured(
        self, scheduler: Seen, now: float, running: int, prefill: int, decode: int, launch: Launch | None
    ) -> Step:
        usage, memory, lanes = self.strategy.usage(), self.strategy.memory, scheduler.lanes
        self.identity.check(usage)
        lane_B, stored_B = self._stored(lanes, launch)
        self.disjoint.check(usage, lanes, lane_B, scheduler.tally.admissions)
        room_B, distinct = lanes.room[lane_B], self._distinct(lanes, lane_B, stored_B)
        parts = split(memory, usage, stored_B, room_B, lanes.final[lane_B], distinct)
        shared = int(room_B.sum()) * memory.token_bytes - (usage.held - usage.rounded)
        if self.map is not None:
            self.map.look(now, lanes, lane_B, stored_B)
        backed = memory.bytes if usage.backed is None else usage.backed
        committed = backed if self.committed is None else self.committed()
        return Step(
            now, now - self.last_s, running, scheduler.queued, prefill, decode, *parts, usage.held, backed,
            committed, scheduler.tally.preemptions, scheduler.tally.admissions, shared,
        )  # fmt: skip

    @staticmethod
    def _stored(lanes: Places, launch: Launch | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(lanes on the device [B], tokens that each has stored once the launch is over [B])."""
        if launch is not None and len(launch.lane_B) == len(lanes):
            return launch.lane_B, launch.stop_B
        lane_B = lanes.order
        stored_B = lanes.stored[lane_B]
        if launch is not None:
            stored_B[np.isin(lane_B, launch.lane_B)] = launch.stop_B  # both in order of admission
        return lane_B, stored_B

    def _distinct(self, lanes: Places, lane_B: NDArray[np.int64], stored_B: NDArray[np.int64]) -> int | None:
        """Where a fork has not asked for room of its own yet: slots that are written."""
        block_size = self.strategy.block_size
        if block_size is None or not lanes.asks[lane_B].any():
            return None
        return distinct_tokens(self.strategy.table.data, lanes.row[lane_B], stored_B, block_size)

    def _take(self, block: Block) -> None:
        self.totals.add(block)
        self.kept.add(block)
