"""The decisions of kvlab.engine.scheduler where nothing but lengths is known, for many sequences at a time.

For requests of one sequence each and what kvlab.simulate.is_plain names. Whatever it decides, Scheduler would decide:
tests compare every step. Sequences are columns here, and nothing is made for each request.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.columns import AT, COLUMNS, Block, Ended, Table, ended
from kvlab.engine.launch import Launch
from kvlab.engine.metered import Metered
from kvlab.engine.tally import Tally
from kvlab.strategy import Arrivals, Copy, Move, Strategy

ARRIVAL = [AT[name] for name in ("id", "known", "prompt", "limit", "limit")]  # Limit expects what a client declared
KNOWN, LIMIT, PREEMPTIONS = AT["known"], AT["limit"], AT["preemptions"]


class PlainScheduler:
    """The waiting queue and the running lanes, over one strategy."""

    def __init__(self, strategy: Strategy, on_end: Callable[[Ended], None], max_preemptions: int = 20) -> None:
        self.strategy, self.on_end, self.max_preemptions = strategy, on_end, max_preemptions
        self.lanes, self.metered, self.tally = Table(strategy.memory.max_seqs), Metered(strategy), Tally()
        self.waiting: Block = np.empty((len(COLUMNS), 0), np.int64)
        self.backlog = 0  # requests that have come, but are not in `waiting` yet
        self.moves: list[Move] = []
        self.decoding = False  # everybody's newest token, and no other, is left to compute
        self.refused_at = -1  # `changes` when the head of the queue was refused last
        self.changes = 0  # releases and copies: nothing else can turn a refusal into a grant

    @property
    def num_waiting(self) -> int:
        return len(self.waiting[KNOWN])

    @property
    def queued(self) -> int:
        """Requests that have come and do not run."""
        return self.num_waiting + self.backlog

    @property
    def busy(self) -> bool:
        return self.num_waiting > 0 or len(self.lanes) > 0

    # --- requests come

    def enqueue(self, block: Block) -> None:
        """They have arrived: they wait, but for those that could never fit."""
        long_N = block[LIMIT] > self.strategy.longest
        if long_N.any():
            self._refuse(block[:, long_N])
            block = block[:, ~long_N]
        self.waiting = np.concatenate((self.waiting, block), axis=1)

    def _refuse(self, block: Block) -> None:
        for index, limit in enumerate(block[LIMIT].tolist()):
            reason = f"may grow to {limit:,} tokens, longest here is {self.strategy.longest:,}"
            self._end(ended(block[:, index : index + 1], "refused", reason))

    # --- one step

    def plan(self) -> Launch | None:
        """Room for what this step computes; None when nobody runs. The moves are in `take_moves`."""
        preemptions = self.tally.preemptions
        self._grow()
        if preemptions == self.tally.preemptions:
            self._admit()
        self.drain()
        return self._launch() if len(self.lanes) else None

    def take_moves(self) -> list[Move]:
        moves, self.moves = self.moves, []
        return moves

    def done(self, launch: Launch, now: float) -> None:
        """The launch is over, at `now` seconds."""
        lanes, count = self.lanes, len(self.lanes)
        lanes.stored[:count] = launch.stop_B
        known_B, samples_B = lanes.known[:count], launch.samples_B
        lanes.first_token_s[:count][samples_B & (known_B == lanes.prompt[:count])] = now
        last_s_B = lanes.last_token_s[:count]
        self.tally.gaps.add(now - last_s_B[samples_B & (known_B > lanes.prompt[:count])])
        last_s_B[samples_B] = now
        known_B += samples_B
        over_B = samples_B & (known_B >= lanes.end[:count])
        self._finish(over_B, now)
        self.decoding = np.count_nonzero(samples_B) == count or self._all_decode()

    def _finish(self, over_B: NDArray[np.bool_], now: float) -> None:
        if np.count_nonzero(over_B):
            self._end(ended(self._take_off(over_B), "finished", "", now))

    def _launch(self) -> Launch:
        """Everybody has room for what is next: `_grow` and admission saw to it."""
        lanes, count = self.lanes, len(self.lanes)
        start_B, known_B = lanes.stored[:count].copy(), lanes.known[:count].copy()
        stop_B = known_B if self.decoding else np.minimum(known_B, start_B + self.strategy.memory.chunk)
        row_B = lanes.row[:count].copy()
        return Launch(lanes.order, row_B, start_B, stop_B, stop_B == known_B, None, self.metered.ahead())

    # --- launches of which one is like the other

    def alike(self) -> int:
        """How many from the planned one on only decode, with nothing to decide between them; 0: it does more.

        At the end of the last of them somebody may be done.
        """
        if not self.decoding:
            return 0  # prompts, or recomputation
        if self._may_admit():
            return 1
        lanes, count = self.lanes, len(self.lanes)
        return int((np.minimum(lanes.end[:count], lanes.room[:count] + 1) - lanes.known[:count]).min())

    def left(self) -> int:
        """Launches until somebody is done, where all decode."""
        count = len(self.lanes)
        return int((self.lanes.end[:count] - self.lanes.known[:count]).min())

    def advance(self, end_K: NDArray[np.float64]) -> None:
        """These are over, at so many seconds."""
        lanes, count, steps, now = self.lanes, len(self.lanes), len(end_K), float(end_K[-1])
        self.tally.gaps.stretch(lanes.last_token_s[:count], end_K)
        lanes.last_token_s[:count] = now
        lanes.stored[:count] += steps
        lanes.known[:count] += steps
        self._finish(lanes.known[:count] >= lanes.end[:count], now)

    def _all_decode(self) -> bool:
        lanes, count = self.lanes, len(self.lanes)
        known_B = lanes.known[:count]
        ready_B = (lanes.stored[:count] == known_B - 1) & (known_B > lanes.prompt[:count])
        return bool(np.count_nonzero(ready_B) == count)

    def _may_admit(self) -> bool:
        return bool(self.num_waiting and self.lanes.spare and self.refused_at != self.changes)

    # --- growth, and who gives way

    def _grow(self) -> None:
        lanes, count = self.lanes, len(self.lanes)
        upto_B = lanes.known[:count]
        if not self.decoding:
            upto_B = np.minimum(upto_B, lanes.stored[:count] + self.strategy.memory.chunk)
        lane_A = (upto_B > lanes.room[:count]).nonzero()[0]
        while len(lane_A):
            rooms = self.metered.extend_all(lanes.id[lane_A].tolist(), lanes.stored[lane_A], upto_B[lane_A])
            lanes.room[lane_A[: len(rooms)]] = rooms
            lane_A = lane_A[len(rooms) :]
            if len(lane_A):
                self._make_room(int(lane_A[0]), int(upto_B[lane_A[0]]))
                lane_A = lane_A[lane_A < len(lanes)]  # who gives way is always the last

    def _make_room(self, lane: int, upto: int) -> None:
        """After `lane` was refused: take the moves over, else preempt the newest, else let it fail."""
        if self.drain():  # what an undrained move still reads is held until then
            return
        lanes, last = self.lanes, len(self.lanes) - 1
        if not last:
            self._fail(f"alone, it could not grow from {lanes.stored[lane]:,} to {upto:,} tokens")
        elif lanes.cells[PREEMPTIONS, last] >= self.max_preemptions:
            self._fail(f"would be preempted once more than engine.max_preemptions={self.max_preemptions} allows")
        else:
            block = self._take_off(lanes.order == last)
            self.decoding = self.decoding or self._all_decode()
            block[PREEMPTIONS] += 1
            self.tally.preemptions += 1
            self.waiting = np.concatenate((block, self.waiting), axis=1)

    def _fail(self, reason: str) -> None:
        """The newest."""
        self._end(ended(self._take_off(self.lanes.order == len(self.lanes) - 1), "failed", reason))

    # --- admission

    def _admit(self) -> None:
        while self._may_admit():
            asked = min(self.num_waiting, self.lanes.spare)
            if self._start(asked) == asked:
                continue
            if self.drain():  # what an undrained move still reads was held until now
                continue
            if len(self.lanes):
                self.refused_at = self.changes
                continue
            head, self.waiting = self.waiting[:, :1], self.waiting[:, 1:]
            reason = f"alone, there was no room for {head[KNOWN, 0]:,} tokens and one more"
            self._end(ended(head, "failed", reason))

    def _start(self, asked: int) -> int:
        """Ask for the first of those that wait; so many were granted room and run from this step on."""
        rooms = self.metered.admit_all(Arrivals(*self.waiting[ARRIVAL, :asked]), beyond=1)
        count = len(rooms)
        if not count:
            return 0
        block, self.waiting = self.waiting[:, :count].copy(), self.waiting[:, count:]
        block[AT["row"]] = self.strategy.table.rows(block[AT["id"]].tolist())
        block[AT["room"]] = rooms
        block[AT["stored"]] = block[AT["found"]] = 0
        self.lanes.add(block)
        self.decoding = False
        fresh_N = (block[PREEMPTIONS] == 0) & (block[KNOWN] == block[AT["prompt"]])
        self.tally.admissions += count
        self.tally.input_tokens += int(block[KNOWN][fresh_N].sum())
        return count

    # --- departures

    def _take_off(self, out_B: NDArray[np.bool_]) -> Block:
        """From their lanes; the strategy has them no longer."""
        block = self.lanes.take(out_B)
        stored_N, reached_N = block[AT["stored"]], block[AT["reached"]]
        self.tally.recomputed_tokens += int(np.maximum(np.minimum(stored_N, reached_N) - block[AT["found"]], 0).sum())
        block[AT["reached"]] = np.maximum(stored_N, reached_N)
        self.metered.release_all(block[AT["id"]].tolist())
        self.changes += block.shape[1]
        return block

    def _end(self, ended: Ended) -> None:
        self.tally.num_ended += len(ended)
        self.on_end(ended)

    def drain(self) -> bool:
        """Take the strategy's moves over; whether there were any."""
        moves = self.metered.drain()
        if not moves:
            return False
        self.moves += moves
        self.changes += any(isinstance(move, Copy) for move in moves)
        return True
