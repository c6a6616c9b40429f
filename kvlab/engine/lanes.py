"""The sequences on the device, in columns: a decode step is a few numpy operations, whatever their number.

A lane is an index into the columns; a sequence keeps its lane from admission to release or preemption.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.launch import Launch, packed
from kvlab.engine.sequence import Sequence


class Lanes:
    """Columns over at most max_seqs sequences of at most max_len tokens."""

    def __init__(self, max_seqs: int, max_len: int, with_ids: bool = True) -> None:
        self.sequence: list[Sequence | None] = [None] * max_seqs
        self.id = np.zeros(max_seqs, np.int64)  # of the sequence
        self.seed = np.zeros(max_seqs, np.int64)  # of its sampling
        self.temperature = np.zeros(max_seqs)
        self.row = np.zeros(max_seqs, np.int64)  # of the strategy's tables
        self.stored = np.zeros(max_seqs, np.int64)  # tokens in memory
        self.known = np.zeros(max_seqs, np.int64)  # tokens: prompt and output so far
        self.prompt = np.zeros(max_seqs, np.int64)  # tokens of the prompt
        self.room = np.zeros(max_seqs, np.int64)  # tokens it may hold before it must ask
        self.asks = np.zeros(max_seqs, np.bool_)  # it must ask before its next token, whatever its room
        self.end = np.zeros(max_seqs, np.int64)  # tokens at which it is done, end-of-text aside
        self.final = np.zeros(max_seqs, np.int64)  # slots it will have used when done, where a trace knows; else -1
        self.limit = np.zeros(max_seqs, np.int64)  # tokens that its client declared
        self.expected = np.zeros(max_seqs, np.int64)  # tokens that the forecast said
        self.priority = np.zeros(max_seqs, np.int64)
        self.beams = np.zeros(max_seqs, np.int64)  # width of the search that it belongs to; 0: none
        self.last_s = np.zeros(max_seqs)  # when its newest token came, in seconds; negative: none has
        self.drafts = np.zeros(max_seqs, np.int64)  # tokens behind the known ones that are guesses, for this step
        self.brood = np.zeros(max_seqs, np.int64)  # other samples whose first token is drawn beside its own
        self.ids = np.zeros((max_seqs, max_len), np.int32) if with_ids else None
        self._used: dict[int, None] = {}  # lanes, oldest admission first
        self._order: NDArray[np.int64] | None = None  # the same, once somebody has asked for it
        self.lane: dict[int, int] = {}  # of a sequence
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

    def newest(self) -> int:
        return next(reversed(self._used))

    def add(self, sequence: Sequence, row: int, stored: int, room: int, expected: int = 0) -> int:
        lane, request = self.spare.pop(), sequence.request
        sequence.lane, self.sequence[lane], self.lane[sequence.id] = lane, sequence, lane
        self.id[lane], self.seed[lane], self.temperature[lane] = sequence.id, request.seed, request.temperature
        self.row[lane], self.stored[lane], self.room[lane], self.asks[lane] = row, stored, room, False
        self.known[lane], self.prompt[lane] = sequence.known, request.prompt_len
        self.end[lane] = request.final if request.final is not None else request.limit
        # The last token is delivered but never stored: nothing is computed after it.
        self.final[lane] = request.final - 1 if request.final is not None else -1
        self.limit[lane], self.expected[lane], self.priority[lane] = request.limit, expected, request.priority
        self.last_s[lane] = -1.0 if sequence.last_token_s is None else sequence.last_token_s
        self.beams[lane], self.brood[lane], self.drafts[lane] = request.beams, 0, 0
        if self.ids is not None and request.prompt is not None:
            self.ids[lane, : request.prompt_len] = request.prompt
            self.ids[lane, request.prompt_len : sequence.known] = sequence.output
        self._used[lane], self._order = None, None
        return lane

    def remove(self, lane: int) -> Sequence:
        """Take the sequence off; what it has said so far goes with it."""
        sequence = self.at(lane)
        sequence.known = int(self.known[lane])
        sequence.last_token_s = float(self.last_s[lane]) if self.last_s[lane] >= 0 else None
        if self.ids is not None:
            sequence.output = self.ids[lane, sequence.request.prompt_len : sequence.known].copy()
        sequence.lane, self.sequence[lane] = -1, None
        del self._used[lane], self.lane[sequence.id]
        self._order = None
        self.spare.append(lane)
        return sequence

    def tokens(self, lane: int) -> NDArray[np.int32]:
        """Known tokens; a view."""
        assert self.ids is not None
        return self.ids[lane, : self.known[lane]]

    # --- one launch

    def shares(self, chunk: int, budget: int | None) -> NDArray[np.int64]:
        """Tokens that each lane in use, in `order`, is to compute: those that decode first, the others what is left.

        Where the budget ends before somebody's drafts do, it gets as many as are left.

        chunk: of one sequence, at most; budget: of all together, None: without bound.
        """
        lanes = self.order
        left_B = self.known[lanes] - self.stored[lanes]
        want_B: NDArray[np.int64] = np.minimum(left_B + self.drafts[lanes], chunk)
        if budget is None or int(want_B.sum()) <= budget:
            return want_B
        decode_B = _within(np.where(left_B == 1, want_B, 0), budget)
        return decode_B + _within(np.where(left_B > 1, want_B, 0), budget - int(decode_B.sum()))

    def launch(self, share_B: NDArray[np.int64]) -> Launch:
        """Every running sequence's share, as far as it has room and need not ask; those with nothing are left out."""
        lanes = self.order
        start, known = self.stored[lanes], self.known[lanes]
        stop = np.minimum(start + share_B, np.where(self.asks[lanes], start, self.room[lanes]))
        active = stop > start
        if not active.all():
            lanes, start, known, stop = lanes[active], start[active], known[active], stop[active]
        ids = None if self.ids is None else self._pack(self.ids, lanes, start, stop)
        return Launch(lanes, self.row[lanes], start, stop, stop >= known, ids)

    @staticmethod
    def _pack(
        ids: NDArray[np.int32], lanes: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        lane_T, position_T = packed(lanes, start, stop)
        picked: NDArray[np.int32] = ids[lane_T, position_T]
        return picked


def _within(want_B: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """What each gets of a budget, one after the other."""
    before_B = np.cumsum(want_B) - want_B
    given_B: NDArray[np.int64] = np.minimum(want_B, np.maximum(budget - before_B, 0))
    return given_B
