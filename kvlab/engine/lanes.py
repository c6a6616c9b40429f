"""The sequences on the device, in columns: a decode step is a few numpy operations, whatever their number.

A lane is an index into the columns; a sequence keeps its lane from admission to release or preemption.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvlab.moves import Move
from kvlab.request import Request

NOTHING = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class Sequence:
    """One growing list of tokens: a request's life in the engine. Times are seconds from the start of the run."""

    request: Request
    known: int  # tokens: the prompt, and the output so far
    output: NDArray[np.int32] = field(default_factory=lambda: NOTHING)  # kept while it is not running
    lane: int = -1  # -1: not on the device
    found: int = 0  # tokens in place when it was admitted last
    reached: int = 0  # the most tokens that were ever stored of it when it left the device
    preemptions: int = 0
    first_token_s: float | None = None
    finish_s: float | None = None
    outcome: str = "waiting"  # finished, refused (could never fit) or failed
    reason: str = ""  # why it was refused or failed

    @property
    def id(self) -> int:
        return self.request.id


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """What one step computes: tokens [start, stop) of each of B sequences, packed one after another."""

    lane_B: NDArray[np.int64]
    row_B: NDArray[np.int64]  # of the strategy's tables
    start_B: NDArray[np.int64]
    stop_B: NDArray[np.int64]
    samples_B: NDArray[np.bool_]  # all known tokens are stored afterwards: a new one is sampled
    ids_T: NDArray[np.int32] | None  # None in runs of lengths only
    beside: list[Move] = field(default_factory=list)  # carried out while it runs: page groups for growth to come


class Lanes:
    """Columns over at most max_seqs sequences of at most max_len tokens."""

    def __init__(self, max_seqs: int, max_len: int, with_ids: bool = True) -> None:
        self.sequence: list[Sequence | None] = [None] * max_seqs
        self.id = np.zeros(max_seqs, np.int64)  # of the request
        self.seed = np.zeros(max_seqs, np.int64)  # of its sampling
        self.temperature = np.zeros(max_seqs)
        self.row = np.zeros(max_seqs, np.int64)  # of the strategy's tables
        self.stored = np.zeros(max_seqs, np.int64)  # tokens in memory
        self.known = np.zeros(max_seqs, np.int64)  # tokens: prompt and output so far
        self.prompt = np.zeros(max_seqs, np.int64)  # tokens of the prompt
        self.room = np.zeros(max_seqs, np.int64)  # tokens it may hold before it must ask
        self.end = np.zeros(max_seqs, np.int64)  # tokens at which it is done, end-of-text aside
        self.final = np.zeros(max_seqs, np.int64)  # slots it will have used when done, where a trace knows; else -1
        self.ids = np.zeros((max_seqs, max_len), np.int32) if with_ids else None
        self._used: dict[int, None] = {}  # lanes, oldest admission first
        self._order: NDArray[np.int64] | None = None  # the same, once somebody has asked for it
        self.spare = list(range(max_seqs))[::-1]

    def __len__(self) -> int:
        return len(self._used)

    @property
    def order(self) -> NDArray[np.int64]:
        """Lanes in use, oldest admission first: a new array whenever that has changed."""
        if self._order is None:
            self._order = np.fromiter(self._used, np.int64, len(self._used))
        return self._order

    def at(self, lane: int) -> Sequence:
        sequence = self.sequence[lane]
        assert sequence is not None
        return sequence

    def running(self) -> list[int]:
        """Their sequence numbers, oldest admission first."""
        running: list[int] = self.id[self.order].tolist()
        return running

    def add(self, sequence: Sequence, row: int, stored: int, room: int) -> int:
        lane, request = self.spare.pop(), sequence.request
        sequence.lane, self.sequence[lane] = lane, sequence
        self.id[lane], self.seed[lane], self.temperature[lane] = request.id, request.seed, request.temperature
        self.row[lane], self.stored[lane], self.room[lane] = row, stored, room
        self.known[lane], self.prompt[lane] = sequence.known, request.prompt_len
        self.end[lane] = request.final if request.final is not None else request.limit
        # The last token is delivered but never stored: nothing is computed after it.
        self.final[lane] = request.final - 1 if request.final is not None else -1
        if self.ids is not None and request.prompt is not None:
            self.ids[lane, : request.prompt_len] = request.prompt
            self.ids[lane, request.prompt_len : sequence.known] = sequence.output
        self._used[lane], self._order = None, None
        return lane

    def remove(self, lane: int) -> Sequence:
        """Take the sequence off; what it has said so far goes with it."""
        sequence = self.at(lane)
        sequence.known = int(self.known[lane])
        if self.ids is not None:
            sequence.output = self.ids[lane, sequence.request.prompt_len : sequence.known].copy()
        sequence.lane, self.sequence[lane] = -1, None
        del self._used[lane]
        self._order = None
        self.spare.append(lane)
        return sequence

    def launch(self, chunk: int, beside: list[Move]) -> Launch:
        """Every running sequence: the one new token of those that decode, up to `chunk` of those in prefill."""
        lanes = self.order
        start, known = self.stored[lanes], self.known[lanes]
        stop = np.minimum(known, start + chunk)
        ids = None if self.ids is None else self._pack(self.ids, lanes, start, stop)
        return Launch(lanes, self.row[lanes], start, stop, stop == known, ids, beside)

    @staticmethod
    def _pack(
        ids: NDArray[np.int32], lanes: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        lane_T, position_T = packed(lanes, start, stop)
        picked: NDArray[np.int32] = ids[lane_T, position_T]
        return picked


def packed(
    of_B: NDArray[np.int64], start_B: NDArray[np.int64], stop_B: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each packed token: of_B of its sequence [T], and its position [T]."""
    new_B = stop_B - start_B
    first_B = np.cumsum(new_B) - new_B
    position_T = np.arange(int(new_B.sum()), dtype=np.int64) + np.repeat(start_B - first_B, new_B)
    return np.repeat(of_B, new_B), position_T
