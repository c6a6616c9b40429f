"""The same rows, added up for many launches at a time: of each only what is needed for it is noted down.

For runs without a memory, of sequences that share nothing. An error in the books is raised up to EVENTS launches later.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.launch import Launch
from kvlab.record.accounting import AccountingError
from kvlab.record.recorder import Keeps, Recorder
from kvlab.record.seen import Seen
from kvlab.record.step import Step
from kvlab.strategy import Strategy

EVENTS = 128
AT = {name: index for index, name in enumerate(Step._fields)}
NOTED = (
    "running", "prefill_tokens", "decode_seqs", "cached", "held", "backed", "preemptions", "admissions", "rounded",
)  # fmt: skip


class BatchedRecorder(Recorder):
    """Of E launches, or stretches of launches that are alike, K rows in all; B sequences at most."""

    def __init__(self, strategy: Strategy, keeps: Keeps | None = None) -> None:
        super().__init__(strategy, None, keeps)
        self.tokens_E3B = np.zeros((EVENTS, 3, strategy.memory.max_seqs), np.int64)  # stored, room, final
        self.noted: list[tuple[int, ...]] = []
        self.ends: list[NDArray[np.float64]] = []
        self.queues: list[NDArray[np.int64]] = []
        self.before_s = 0.0  # end of the last row that was added up

    @property
    def rows(self) -> list[Step]:
        self._add_up()
        return super().rows

    def end(self) -> None:
        self._add_up()
        super().end()

    def stretch(self, scheduler: Seen, launch: Launch, end_K: NDArray[np.float64], queued_K: NDArray[np.int64]) -> None:
        running = len(launch.lane_B)
        self._note(scheduler, launch, (running, 0, running), end_K, queued_K)

    def _row(self, scheduler: Seen, now: float, running: int, prefill: int, decode: int, launch: Launch | None) -> None:
        self._note(scheduler, launch, (running, prefill, decode), np.array([now]), np.array([scheduler.queued]))

    def _note(
        self,
        scheduler: Seen,
        launch: Launch | None,
        who: tuple[int, int, int],
        end_K: NDArray[np.float64],
        queued_K: NDArray[np.int64],
    ) -> None:
        usage, lanes, tally = self.strategy.usage(), scheduler.lanes, scheduler.tally
        self.identity.check(usage)
        lane_B, count = lanes.order, len(lanes)
        self.disjoint.check(usage, lanes, lane_B, tally.admissions)
        stored_B, room_B, final_B = tokens_3B = self.tokens_E3B[len(self.noted)]
        stored_B[:count] = lanes.stored[lane_B] if launch is None else launch.stop_B
        room_B[:count], final_B[:count] = lanes.room[lane_B], lanes.final[lane_B]
        tokens_3B[:, count:] = 0
        backed = self.strategy.memory.bytes if usage.backed is None else usage.backed
        bytes_ = usage.cached, usage.held, backed, tally.preemptions, tally.admissions, usage.rounded
        self.noted.append((*who, *bytes_))
        self.ends.append(end_K)
        self.queues.append(queued_K)
        self.last_s = float(end_K[-1])
        if len(self.noted) == EVENTS:
            self._add_up()

    def _add_up(self) -> None:
        if not self.noted:
            return
        noted = dict(zip(NOTED, np.array(self.noted, np.int64).T, strict=True))
        column_E = noted | self._split(noted)
        column_E["os_committed"] = column_E["backed"]
        rows_E = np.fromiter(map(len, self.ends), np.int64, len(self.ends))
        end_K, queued_K = np.concatenate(self.ends), np.concatenate(self.queues)
        block = np.repeat(np.stack([column_E.get(name, rows_E) for name in AT], axis=1), rows_E, axis=0).astype(float)
        further_K = np.arange(len(end_K)) - np.repeat(rows_E.cumsum() - rows_E, rows_E)  # launches of the same stretch
        written_K = further_K * block[:, AT["running"]] * self.strategy.memory.token_bytes
        block[:, AT["time_s"]], block[:, AT["waiting"]] = end_K, queued_K
        block[:, AT["dt_s"]] = np.diff(end_K, prepend=self.before_s)
        block[:, AT["token_state"]] += written_K
        block[:, AT["reservation"]] -= written_K
        self.series.extend(block)
        self.before_s = float(end_K[-1])
        for part in (self.noted, self.ends, self.queues):
            part.clear()

    def _split(self, noted: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
        """As kvlab.record.accounting.split: bytes of each launch. AccountingError: of one they do not add up."""
        memory, count = self.strategy.memory, len(self.noted)
        held_E, cached_E = noted["held"], noted["cached"]
        stored_EB, room_EB, final_EB = self.tokens_E3B[:count].transpose(1, 0, 2)
        used_E = np.maximum(np.minimum(room_EB, final_EB), stored_EB).sum(axis=1) * memory.token_bytes
        stored_E, room_E = stored_EB.sum(axis=1) * memory.token_bytes, room_EB.sum(axis=1) * memory.token_bytes
        shared_E = room_E - held_E + noted["rounded"]
        parts = {
            "token_state": stored_E - shared_E,
            "reservation": used_E - stored_E,
            "internal": room_E - used_E,
            "cached": cached_E,
            "external": memory.bytes - held_E - cached_E + noted["rounded"],
            "shared": shared_E,
        }
        least_E = np.min([*parts.values(), memory.bytes - held_E - cached_E], axis=0)
        if least_E.min() < 0:
            event = int(least_E.argmin())
            wrong = {name: int(part_E[event]) for name, part_E in (noted | parts).items()}
            raise AccountingError(f"the pool of {memory.bytes:,} bytes is not {wrong}")
        return parts
