"""Who runs this step: first come first served, growth before admission, and who gives way.

Asks the strategy, owns no memory. One plan a step; `done` takes the tokens that the launch brought. Its parts, each in
a module of its name: entrance (who waits), growth (who runs), departures (who leaves), siblings (requests of several
sequences), teller (what a cache is told), quiet (launches in which nothing changes).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.axes import Admission, Forecast, Preemption, Recompute, Running, Victim, unit_bytes
from kvlab.engine.departures import Departures
from kvlab.engine.entrance import Entrance
from kvlab.engine.growth import Growth
from kvlab.engine.lanes import Lanes
from kvlab.engine.launch import Launch
from kvlab.engine.metered import Metered
from kvlab.engine.quiet import Quiet
from kvlab.engine.sequence import Sequence
from kvlab.engine.settings import LONGEST_PREFIX, Settings
from kvlab.engine.siblings import Siblings
from kvlab.engine.speculation import Speculation
from kvlab.engine.tally import Tally
from kvlab.engine.teller import Teller
from kvlab.request import Request
from kvlab.strategy import Arrival, Copy, Grant, Move, Strategy


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
        preemption: Preemption | None = None,
        eos: tuple[int, ...] = (),
        settings: Settings | None = None,
        speculation: Speculation | None = None,
        on_end: Callable[[Sequence], None] | None = None,
    ) -> None:
        self.strategy, self.lanes, self.eos = strategy, lanes, np.asarray(eos, np.int32)
        self.admission, self.victim, self.forecast = admission, victim, forecast
        self.preemption, self.settings = preemption or Recompute(), settings or Settings()
        self.speculation = speculation
        self.metered, self.tally = Metered(strategy), Tally()
        self.on_end = on_end or self.tally.ended.append
        self.waiting: deque[Sequence] = deque()
        self.backlog = 0  # requests that have come, but that nobody has made a sequence of yet
        self.moves: list[Move] = []
        self.arrivals: dict[int, Arrival] = {}  # of those that wait: one object for as long
        self.refused_at = -1  # `changes` when the head of the queue was refused last
        self.changes = 0  # releases, copies, what caches were told: nothing else can turn a refusal into a grant
        self.unit = unit_bytes(strategy)
        self.stepped = getattr(admission, "stepped", None)  # hooks that an axis may lack
        self.retracted = getattr(admission, "retracted", None)
        self.siblings, self.growth, self.entrance = Siblings(self), Growth(self), Entrance(self)
        self.departures, self.teller, self.quiet = Departures(self), Teller(self), Quiet(self)

    @property
    def queued(self) -> int:
        """Sequences and requests that have come and do not run."""
        return len(self.waiting) + self.backlog

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or len(self.lanes) > 0

    # --- requests come

    def enqueue(self, request: Request) -> None:
        """A request has arrived: it waits, or is refused if it could never fit."""
        if reason := self._never(request):
            self.departures.end(Sequence(request, request.prompt_len), "refused", reason)
        elif request.n > 1 or request.beams:
            for sequence in self.siblings.open(request):
                self._queue(sequence)
        else:
            self._queue(Sequence(request, request.prompt_len))

    def _never(self, request: Request) -> str:
        """Why it could never run; empty where it may."""
        if request.limit > self.strategy.longest:
            return f"may grow to {request.limit:,} tokens, longest here is {self.strategy.longest:,}"
        most = self.strategy.memory.max_seqs
        if max(request.n, request.beams) > most:
            return f"has {max(request.n, request.beams):,} sequences, engine.max_seqs allows {most:,}"
        return ""

    def _queue(self, sequence: Sequence) -> None:
        """Behind all of its priority or a higher one."""
        priority, place = sequence.request.priority, len(self.waiting)
        while place and self.waiting[place - 1].request.priority < priority:
            place -= 1
        self.waiting.insert(place, sequence)
        if not place or self.settings.queue == LONGEST_PREFIX:
            self.refused_at = -1  # that was somebody else
        self.awaited_first()

    def awaited_first(self) -> None:
        """Siblings of those that run go before everybody: those may be standing still for them."""
        awaited = self.siblings.awaited()
        for one in awaited:
            self.waiting.remove(one)
        self.put_first(awaited)

    def put_first(self, sequences: list[Sequence]) -> None:
        """At the head of the queue, in this order."""
        self.waiting.extendleft(reversed(sequences))
        if sequences:
            self.refused_at = -1

    # --- one step

    def plan(self) -> Launch | None:
        """Room for what this step computes; None when nobody can run. The moves are in `take_moves`.

        None while `busy`: somebody has just given way, or come and must ask first; plan again.
        """
        preemptions, admissions, idle = self.tally.preemptions, self.tally.admissions, self.tally.idle
        self.siblings.fork()
        if self.speculation is not None:
            self.speculation.prepare(self)
        self.growth.grow()
        if (preemptions, idle) == (self.tally.preemptions, self.tally.idle):
            self.entrance.admit()  # else what is free is for those that run
        self.drain()
        if not len(self.lanes):
            return None
        launch = self.siblings.complete(self.lanes.launch(self.shares()))
        if len(launch.lane_B):
            launch.beside.extend(self.metered.ahead())
            return launch
        if (preemptions, admissions) == (self.tally.preemptions, self.tally.admissions):
            self.growth.unstick()
        return None

    def take_moves(self) -> list[Move]:
        moves, self.moves = self.moves, []
        return moves

    def done(self, launch: Launch, token_M: NDArray[np.int32], now: float) -> None:
        """The launch is over: `token_M` are the sampled tokens, one for each sampled row; `now` in seconds."""
        lanes = self.lanes
        lanes.stored[launch.lane_B] = np.minimum(launch.stop_B, lanes.known[launch.lane_B])  # drafts are not told
        self.teller.tell_prefills(launch)
        if self.stepped is not None and launch.samples_B.any():
            self.count_step()
        lane_N, token_N = self.siblings.sort_out(launch, token_M, now)
        known_N = lanes.known[lane_N]
        if lanes.ids is not None:
            lanes.ids[lane_N, known_N] = token_N
        lanes.known[lane_N] = known_N + 1
        last_s_N = lanes.last_s[lane_N]
        self.tally.gaps.add(now - last_s_N[last_s_N >= 0])
        lanes.last_s[lane_N] = now
        for lane in lane_N[known_N == lanes.prompt[lane_N]].tolist():
            lanes.at(lane).first_token_s = now
        over_N = lanes.known[lane_N] >= lanes.end[lane_N]
        if len(self.eos):
            over_N |= np.isin(token_N, self.eos) & (lanes.final[lane_N] < 0)
        for lane in lane_N[over_N].tolist():
            self.departures.finish(lane, now)

    def count_step(self) -> None:
        """An admission that counts steps may now think differently of who waits."""
        assert self.stepped is not None
        self.stepped()
        self.changes += 1

    def may_admit(self) -> bool:
        return bool(self.waiting and self.lanes.spare and self.refused_at != self.changes)

    def shares(self) -> NDArray[np.int64]:
        return self.lanes.shares(self.strategy.memory.chunk, self.settings.token_budget)

    # --- those that wait

    def arrival(self, sequence: Sequence) -> Arrival:
        """What the strategy is asked with: one object as long as the sequence waits."""
        arrival = self.arrivals.get(sequence.id)
        if arrival is None:
            arrival = self.arrivals[sequence.id] = self._arrival(sequence, sequence.swapped or sequence.known)
        return arrival

    def _arrival(self, sequence: Sequence, length: int) -> Arrival:
        request, ids = sequence.request, None
        if request.prompt is not None:
            ids = sequence.tokens()[:length]
        expected = self.forecast.expect(request)
        return Arrival(
            sequence.id, length, request.prompt_len, request.limit, expected, ids, request.space, request.priority
        )

    def start(self, sequence: Sequence, grant: Grant) -> int:
        """It has been granted room and runs from this step on; its lane."""
        arrival = self.arrivals.pop(sequence.id)
        row = self.strategy.table.row[sequence.id]
        lane = self.lanes.add(sequence, row, grant.hit, grant.room, arrival.expected)
        self.lanes.asks[lane] = bool(sequence.swapped)
        self.tally.admissions += 1
        sequence.found, sequence.swapped = grant.hit, 0
        if not sequence.preemptions and sequence.known == sequence.request.prompt_len:
            self.tally.input_tokens += sequence.known
            self.tally.hit_tokens += grant.hit
        self.siblings.started(sequence, lane)
        return lane

    def drain(self) -> bool:
        """Take the strategy's moves over; whether there were any."""
        moves = self.metered.drain()
        self.moves += moves
        self.changes += any(isinstance(move, Copy) for move in moves)
        return bool(moves)

    def running(self) -> Running:
        """Those on the device, in columns."""
        lanes, order = self.lanes, self.lanes.order
        return Running(
            lanes.id[order], lanes.stored[order], lanes.known[order], lanes.prompt[order], lanes.limit[order],
            lanes.expected[order], lanes.room[order], lanes.priority[order],
            self.strategy.memory.token_bytes, self.unit,
        )  # fmt: skip
