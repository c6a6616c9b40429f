"""A row for each step: who ran, and where the pool's bytes were while it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvlab.engine.lanes import Launch
from kvlab.record.accounting import Identity, split
from kvlab.record.disjoint import Disjoint
from kvlab.strategy import Strategy

if TYPE_CHECKING:
    from kvlab.engine.scheduler import Scheduler


class Step(NamedTuple):
    """One step, seen when its launch is over and before anybody leaves. Bytes, seconds, counts."""

    time_s: float  # end of the step, from the start of the run
    dt_s: float
    running: int
    waiting: int
    prefill_tokens: int  # computed by sequences that have known tokens left or had: prompts, and recomputation
    decode_seqs: int  # sequences that computed their newest token
    token_state: int
    reservation: int
    internal: int
    cached: int
    external: int
    held: int
    backed: int
    os_committed: int
    preemptions: int  # so far
    admissions: int  # so far


class Recorder:
    """Rows of one run. `committed` reads from the operating system what is really backed, in bytes."""

    def __init__(self, strategy: Strategy, committed: Callable[[], int]) -> None:
        self.strategy, self.committed = strategy, committed
        self.identity, self.disjoint = Identity(strategy.memory, strategy.usage()), Disjoint(strategy)
        self.rows: list[Step] = []
        self.last_s = 0.0

    def step(self, scheduler: Scheduler, launch: Launch, now: float) -> None:
        new_B = launch.stop_B - launch.start_B
        decode_B = launch.samples_B & (new_B == 1) & (launch.start_B >= scheduler.lanes.prompt[launch.lane_B])
        prefill = int(new_B[~decode_B].sum())
        self._row(scheduler, now, len(new_B), prefill, int(decode_B.sum()), launch)

    def idle(self, scheduler: Scheduler, now: float) -> None:
        """Nothing ran until `now`."""
        self._row(scheduler, now, 0, 0, 0, None)

    def end(self) -> None:
        """Everybody has left. AccountingError: something is still held."""
        self.identity.check_empty(self.strategy.usage())

    def _row(
        self, scheduler: Scheduler, now: float, running: int, prefill: int, decode: int, launch: Launch | None
    ) -> None:
        usage, memory, lanes = self.strategy.usage(), self.strategy.memory, scheduler.lanes
        self.identity.check(usage)
        lane_B = np.empty(0, np.int64) if launch is None else launch.lane_B
        stored_B = np.empty(0, np.int64) if launch is None else launch.stop_B
        self.disjoint.check(usage, lanes, lane_B, scheduler.tally.admissions)
        parts = split(memory, usage, stored_B, lanes.room[lane_B], lanes.final[lane_B])
        backed = memory.bytes if usage.backed is None else usage.backed
        self.rows.append(
            Step(
                now, now - self.last_s, running, len(scheduler.waiting), prefill, decode, *parts, usage.held, backed,
                self.committed(), scheduler.tally.preemptions, scheduler.tally.admissions,
            )
        )  # fmt: skip
        self.last_s = now
