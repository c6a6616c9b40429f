"""Who runs this step: first come first served, growth before admission, preemption by recomputation.

Asks the strategy, owns no memory. One plan a step; `done` takes the tokens that the launch brought.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.axes import Admission, Forecast, Victim
from kvlab.engine.lanes import Lanes, Launch, Sequence
from kvlab.engine.metered import Metered
from kvlab.request import Request
from kvlab.strategy import Arrival, Copy, Grant, Move, Strategy

# Token ids of sequences at positions: (request ids [N], positions [N]) to [N].
Tokens = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int32]]


@dataclass(slots=True)
class Tally:
    """What the scheduler did, for the record."""

    preemptions: int = 0
    recomputed_tokens: int = 0
    hit_tokens: int = 0
    input_tokens: int = 0  # of first admissions
    admissions: int = 0
    num_ended: int = 0
    ended: list[Sequence] = field(default_factory=list)  # finished, refused, failed; empty where they go elsewhere


class Scheduler:
    """The waiting queue and the running lanes, over one strategy."""

    def __init__(
        self,
        strategy: Strategy,
        lanes: Lanes,
        *,
        admission: Admission,
        victim: Victim,
        forecast: Forecast,
        eos: tuple[int, ...] = (),
        on_end: Callable[[Sequence], None] | None = None,
    ) -> None:
        self.strategy, self.lanes, self.eos = strategy, lanes, np.asarray(eos, np.int32)
        self.admission, self.victim, self.forecast = admission, victim, forecast
        self.metered, self.tally = Metered(strategy), Tally()
        self.on_end = on_end or self.tally.ended.append
        self.waiting: deque[Sequence] = deque()
        self.backlog = 0  # requests that have come, but that nobody has made a sequence of yet
        self.moves: list[Move] = []
        self.arrivals: dict[int, Arrival] = {}  # of those that wait: one object for as long
        self.refused_at = -1  # `changes` when the head of the queue was refused last
        self.changes = 0  # releases, copies, what caches were told: nothing else can turn a refusal into a grant

    @property
    def queued(self) -> int:
        """Requests that have come and do not run."""
        return len(self.waiting) + self.backlog

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or len(self.lanes) > 0

    # --- requests come

    def enqueue(self, request: Request) -> None:
        """A request has arrived: it waits, or is refused if it could never fit."""
        sequence = Sequence(request, request.prompt_len)
        if request.limit > self.strategy.longest:
            self._end(
                sequence,
                "refused",
                f"may grow to {request.limit:,} tokens, longest here is {self.strategy.longest:,}",
            )
            return
        self.waiting.append(sequence)

    # --- one step

    def plan(self) -> Launch | None:
        """Room for what this step computes; None when nobody runs. The moves are in `take_moves`."""
        preemptions = self.tally.preemptions
        self._grow()
        if preemptions == self.tally.preemptions:
            self._admit()
        self._drain()
        return self.lanes.launch(self.strategy.memory.chunk, self.metered.ahead()) if len(self.lanes) else None

    def take_moves(self) -> list[Move]:
        moves, self.moves = self.moves, []
        return moves

    def done(self, launch: Launch, token_N: NDArray[np.int32], now: float) -> None:
        """The launch is over: `token_N` are the sampled tokens, one for each that samples; `now` in seconds."""
        lanes, lane_N = self.lanes, launch.lane_B[launch.samples_B]
        lanes.stored[launch.lane_B] = launch.stop_B
        known_N = lanes.known[lane_N]
        if lanes.ids is not None:
            lanes.ids[lane_N, known_N] = token_N
        lanes.known[lane_N] = known_N + 1
        self._tell_prefills(launch)
        for lane in lane_N[known_N == lanes.prompt[lane_N]].tolist():
            lanes.at(lane).first_token_s = now
        over_N = lanes.known[lane_N] >= lanes.end[lane_N]
        if len(self.eos):
            over_N |= np.isin(token_N, self.eos) & (lanes.final[lane_N] < 0)
        for lane in lane_N[over_N].tolist():
            self._finish(lane, now)

    # --- launches in which nothing changes

    def quiet(self, launch: Launch) -> int:
        """How many launches from this one on, which was planned, only decode, with nobody done at their end.

        Behind the first of them nobody asks or may be admitted either.
        """
        lanes, lane_B = self.lanes, launch.lane_B
        known_B = lanes.known[lane_B]
        if len(self.eos) or (launch.start_B < known_B - 1).any() or (known_B <= lanes.prompt[lane_B]).any():
            return 0  # prompts, or recomputation
        unfinished = int((lanes.end[lane_B] - known_B).min()) - 1
        if self._may_admit():
            return min(unfinished, 1)
        return min(unfinished, int((lanes.room[lane_B] - known_B).min()) + 1)

    def advance(self, steps: int, tokens: Tokens) -> None:
        """So many quiet launches are over; tokens(request ids [N], positions [N]) are those that they sampled."""
        lanes, order = self.lanes, self.lanes.order
        if lanes.ids is not None:
            position_BK = lanes.known[order, None] + np.arange(steps)
            id_BK = np.broadcast_to(lanes.id[order, None], position_BK.shape)
            token_N = tokens(id_BK.ravel(), position_BK.ravel())
            lanes.ids[order[:, None], position_BK] = token_N.reshape(position_BK.shape)
        lanes.stored[order] += steps
        lanes.known[order] += steps

    def _may_admit(self) -> bool:
        return bool(self.waiting and self.lanes.spare and self.refused_at != self.changes)

    # --- growth and preemption

    def _grow(self) -> None:
        lanes = self.lanes
        order = lanes.order
        upto = np.minimum(lanes.known[order], lanes.stored[order] + self.strategy.memory.chunk)
        asks = upto > lanes.room[order]
        lane_A, upto_A = order[asks], upto[asks]
        for lane in lane_A.tolist() if self.metered.tells else ():
            self._tell(lane)
        while len(lane_A):
            room_G = self._extend(lane_A, upto_A)
            lanes.room[lane_A[: len(room_G)]] = room_G
            lane_A, upto_A = lane_A[len(room_G) :], upto_A[len(room_G) :]
            if len(lane_A):
                self._make_room(int(lane_A[0]), int(upto_A[0]))
                runs_A = [lanes.sequence[lane] is not None for lane in lane_A.tolist()]
                lane_A, upto_A = lane_A[runs_A], upto_A[runs_A]

    def _extend(self, lane_A: NDArray[np.int64], upto_A: NDArray[np.int64]) -> list[int]:
        """Rooms of those, from the first on, that were not refused."""
        lanes = self.lanes
        return self.metered.extend_all(lanes.id[lane_A].tolist(), lanes.stored[lane_A].tolist(), upto_A.tolist())

    def _make_room(self, lane: int, upto: int) -> None:
        """After `lane` was refused: take the moves over, else preempt somebody, else let it fail."""
        if self._drain():  # what an undrained move still reads is held until then
            return
        if len(self.lanes) > 1:
            self._preempt(self._lane_of(self.victim.choose(self.lanes.running(), self.lanes.at(lane).id)))
            return
        reason = f"alone, it could not grow from {self.lanes.stored[lane]:,} to {upto:,} tokens"
        self._end(self._take_off(lane), "failed", reason)

    def _preempt(self, lane: int) -> None:
        sequence = self._take_off(lane)
        sequence.preemptions += 1
        self.tally.preemptions += 1
        self.waiting.appendleft(sequence)  # the newest goes first, so the oldest ends up in front

    # --- admission

    def _admit(self) -> None:
        while self._may_admit():
            sequence = self.waiting[0]
            grant = self._ask(sequence)
            if grant is None and self._drain():  # what an undrained move still reads was held until now
                grant = self._ask(sequence)
            if grant is not None:
                self._start(self.waiting.popleft(), grant)
            elif len(self.lanes):
                self.refused_at = self.changes
            else:
                reason = f"alone, there was no room for {sequence.known:,} tokens and one more"
                self._end(self.waiting.popleft(), "failed", reason)

    def _ask(self, sequence: Sequence) -> Grant | None:
        arrival = self.arrivals.get(sequence.id)
        if arrival is None:
            arrival = self.arrivals[sequence.id] = self._arrival(sequence)
        terms = self.admission.terms(arrival, len(self.lanes), self.metered.usage())
        return None if terms is None else self.metered.admit(arrival, *terms)

    def _arrival(self, sequence: Sequence) -> Arrival:
        request, ids = sequence.request, None
        if request.prompt is not None:
            ids = np.concatenate((request.prompt, sequence.output))
            ids.flags.writeable = False
        expected = self.forecast.expect(request)
        return Arrival(sequence.id, sequence.known, request.prompt_len, request.limit, expected, ids)

    def _start(self, sequence: Sequence, grant: Grant) -> None:
        del self.arrivals[sequence.id]
        self.lanes.add(sequence, self.strategy.table.row[sequence.id], grant.hit, grant.room)
        self.tally.admissions += 1
        sequence.found = grant.hit
        if not sequence.preemptions:
            self.tally.input_tokens += sequence.known
            self.tally.hit_tokens += grant.hit

    # --- departures

    def _finish(self, lane: int, now: float) -> None:
        sequence = self._take_off(lane)
        sequence.finish_s = now
        self._end(sequence, "finished", "")

    def _end(self, sequence: Sequence, outcome: str, reason: str) -> None:
        self.arrivals.pop(sequence.id, None)
        sequence.outcome, sequence.reason = outcome, reason
        self.tally.num_ended += 1
        self.on_end(sequence)

    def _take_off(self, lane: int) -> Sequence:
        self._tell(lane)
        stored = int(self.lanes.stored[lane])
        sequence = self.lanes.remove(lane)
        self.tally.recomputed_tokens += max(0, min(stored, sequence.reached) - sequence.found)
        sequence.reached = max(stored, sequence.reached)
        self.metered.release(sequence.id)
        self.changes += 1
        return sequence

    # --- what the strategy is told

    def _tell(self, lane: int) -> None:
        if self.metered.tells:
            stored = int(self.lanes.stored[lane])
            ids = None if self.lanes.ids is None else self.lanes.ids[lane, :stored]
            if ids is not None:
                ids.flags.writeable = False  # of this view
            self.metered.wrote(self.lanes.at(lane).id, stored, ids)
            self.changes += 1

    def _tell_prefills(self, launch: Launch) -> None:
        if self.metered.tells:
            prefills_B = (launch.stop_B - launch.start_B > 1) | (launch.start_B < self.lanes.prompt[launch.lane_B])
            for lane in launch.lane_B[prefills_B].tolist():
                self._tell(lane)

    def _drain(self) -> bool:
        """Take the strategy's moves over; whether there were any."""
        moves = self.metered.drain()
        self.moves += moves
        self.changes += any(isinstance(move, Copy) for move in moves)
        return bool(moves)

    def _lane_of(self, seq: int) -> int:
        order = self.lanes.order
        return int(order[self.lanes.id[order] == seq][0])
