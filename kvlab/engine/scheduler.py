"""Who runs this step: first come first served, growth before admission, and who gives way.

Asks the strategy, owns no memory. One plan a step; `done` takes the tokens that the launch brought. What requests of
several sequences need beside that is in kvlab.engine.siblings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.axes import Admission, Forecast, Preemption, Recompute, Running, Victim, unit_bytes
from kvlab.engine.lanes import Lanes
from kvlab.engine.launch import Launch
from kvlab.engine.metered import Metered
from kvlab.engine.sequence import Sequence, shared_tokens
from kvlab.engine.siblings import Siblings
from kvlab.engine.speculation import Speculation
from kvlab.engine.tally import Tally
from kvlab.request import Request
from kvlab.strategy import Arrival, Copy, Grant, Move, Strategy

# Token ids of sequences at positions: (sequences [N], positions [N]) to [N].
Tokens = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the node `engine`."""

    token_budget: int | None = None  # tokens of one launch, over all sequences; None: without bound
    max_preemptions: int = 20  # of one sequence; then its request fails
    wait_for_prefix: bool = True  # an arrival waits while somebody is computing more of its prefix than it would find
    fork: bool = True  # samples of one request, and beams, share what they have in common
    length_penalty: float = 1.0  # of beam search

    @staticmethod
    def of(engine: dict[str, Any]) -> Settings:
        """Of the node `engine`, which has checked values."""
        names = [field.name for field in fields(Settings)]
        return Settings(**{name: engine[name] for name in names if name in engine})


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
        self.learn = getattr(forecast, "learn", None)  # hooks that an axis may lack
        self.stepped, self.retracted, self.told_finished = (
            getattr(admission, name, None) for name in ("stepped", "retracted", "finished")
        )
        self.siblings = Siblings(self)

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
            self.end(Sequence(request, request.prompt_len), "refused", reason)
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
        if not place:
            self.refused_at = -1  # that was somebody else
        self._awaited_first()

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
        self._grow()
        if (preemptions, idle) == (self.tally.preemptions, self.tally.idle):
            self._admit()  # else what is free is for those that run
        self.drain()
        if not len(self.lanes):
            return None
        launch = self.siblings.complete(self.lanes.launch(self._shares()))
        if len(launch.lane_B):
            launch.beside.extend(self.metered.ahead())
            return launch
        if (preemptions, admissions) == (self.tally.preemptions, self.tally.admissions):
            self._unstick()
        return None

    def take_moves(self) -> list[Move]:
        moves, self.moves = self.moves, []
        return moves

    def done(self, launch: Launch, token_M: NDArray[np.int32], now: float) -> None:
        """The launch is over: `token_M` are the sampled tokens, one for each sampled row; `now` in seconds."""
        lanes = self.lanes
        lanes.stored[launch.lane_B] = np.minimum(launch.stop_B, lanes.known[launch.lane_B])  # drafts are not told
        self._tell_prefills(launch)
        if self.stepped is not None and launch.samples_B.any():
            self._step()
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
        if len(lane_B) < len(lanes) or launch.choices is not None or self.speculation is not None:
            return 0  # somebody stands still, a search chooses, or drafts are verified
        unfinished = int((lanes.end[lane_B] - known_B).min()) - 1
        if self._may_admit() or (self.waiting and self.stepped is not None):
            return min(unfinished, 1)
        return min(unfinished, int((lanes.room[lane_B] - known_B).min()) + 1)

    def advance(self, end_K: NDArray[np.float64], tokens: Tokens) -> None:
        """Quiet launches are over, at these seconds; tokens(sequences [N], positions [N]) are what they sampled."""
        lanes, order, steps = self.lanes, self.lanes.order, len(end_K)
        self.tally.gaps.stretch(lanes.last_s[order], end_K)
        lanes.last_s[order] = end_K[-1]
        if lanes.ids is not None:
            position_BK = lanes.known[order, None] + np.arange(steps)
            id_BK = np.broadcast_to(lanes.id[order, None], position_BK.shape)
            token_N = tokens(id_BK.ravel(), position_BK.ravel())
            lanes.ids[order[:, None], position_BK] = token_N.reshape(position_BK.shape)
        lanes.stored[order] += steps
        lanes.known[order] += steps
        for _ in range(steps if self.stepped is not None else 0):
            self._step()

    def _step(self) -> None:
        """An admission that counts steps may now think differently of who waits."""
        assert self.stepped is not None
        self.stepped()
        self.changes += 1

    def _may_admit(self) -> bool:
        return bool(self.waiting and self.lanes.spare and self.refused_at != self.changes)

    def _shares(self) -> NDArray[np.int64]:
        return self.lanes.shares(self.strategy.memory.chunk, self.settings.token_budget)

    # --- growth, and who gives way

    def _grow(self) -> None:
        lanes = self.lanes
        order, share = lanes.order, self._shares()
        upto = lanes.stored[order] + share
        asks = (upto > lanes.room[order]) | (lanes.asks[order] & (share > 0))
        lane_A, upto_A = order[asks], upto[asks]
        for lane in lane_A.tolist() if self.metered.tells else ():
            self.tell(lane)
        while len(lane_A):
            room_G = self._extend(lane_A, upto_A)
            granted = lane_A[: len(room_G)]
            lanes.room[granted], lanes.asks[granted] = room_G, False
            lane_A, upto_A = lane_A[len(room_G) :], upto_A[len(room_G) :]
            if len(lane_A) and not self._make_room(int(lane_A[0]), int(upto_A[0])):
                lane_A, upto_A = lane_A[1:], upto_A[1:]
            runs_A = [lanes.sequence[lane] is not None for lane in lane_A.tolist()]
            lane_A, upto_A = lane_A[runs_A], upto_A[runs_A]

    def _extend(self, lane_A: NDArray[np.int64], upto_A: NDArray[np.int64]) -> list[int]:
        """Rooms of those, from the first on, that were not refused."""
        lanes = self.lanes
        return self.metered.extend_all(lanes.id[lane_A].tolist(), lanes.stored[lane_A], upto_A)

    def _make_room(self, lane: int, upto: int) -> bool:
        """After `lane` was refused: whether to ask once more. If not, it has failed or stands still for this step."""
        if self.drain():  # what an undrained move still reads is held until then
            return True
        asker = self.lanes.at(lane)
        if self.siblings.alone(asker):
            self.fail(asker, f"alone, it could not grow from {self.lanes.stored[lane]:,} to {upto:,} tokens")
            return False
        victim = self.victim.choose(self.running(), asker.id)
        if victim is not None and self._give_way(self.lanes.lane[victim]):
            return True
        self.lanes.asks[lane] = True
        self.tally.idle += 1
        return False

    def _give_way(self, lane: int) -> bool:
        """Take a sequence off for others' sake, with those that cannot go on without it; False: it stays."""
        sequence = self.lanes.at(lane)
        how = self.preemption.how(sequence.id, int(self.lanes.stored[lane]), self._hit_on_return(lane))
        if how == "none":
            return False
        if sequence.preemptions >= self.settings.max_preemptions:
            most = f"engine.max_preemptions={self.settings.max_preemptions}"
            self.fail(sequence, f"would be preempted once more than {most} allows")
            return True
        for one in self.siblings.together(sequence):  # the newest goes first, so the oldest ends up in front
            self._preempt(one, swap=how == "swap")
        return True

    def _preempt(self, sequence: Sequence, swap: bool) -> None:
        self.take_off(sequence.lane, swap)
        sequence.preemptions += 1
        self.tally.preemptions += 1
        self._back_to_queue(sequence)
        if self.retracted is not None:
            self.retracted()

    def _back_to_queue(self, sequence: Sequence) -> None:
        """At its head, but for those that are waited for."""
        self.waiting.appendleft(sequence)
        self._awaited_first()

    def _awaited_first(self) -> None:
        """Siblings of those that run go before everybody: those may be standing still for them."""
        awaited = self.siblings.awaited()
        for one in awaited:
            self.waiting.remove(one)
        self.put_first(awaited)

    def _hit_on_return(self, lane: int) -> int:
        """Tokens that a cache would give back."""
        if not self.metered.finds or self.lanes.ids is None:
            return 0
        self.tell(lane)
        sequence, ids = self.lanes.at(lane), self.lanes.tokens(lane).copy()
        request = sequence.request
        arrival = Arrival(
            sequence.id, len(ids), request.prompt_len, request.limit, request.limit, ids, request.space,
            request.priority,
        )  # fmt: skip
        return self.metered.lookup(arrival)

    def _unstick(self) -> None:
        """Sequences run and none of them can go on: the newest gives way, or fails."""
        lane = self.lanes.newest()
        sequence = self.lanes.at(lane)
        if self.siblings.alone(sequence) or not self._give_way(lane):
            self.fail(sequence, f"at {self.lanes.stored[lane]:,} tokens it could not go on, and nobody gives way")

    # --- admission

    def _admit(self) -> None:
        left = list[Sequence]()
        while self._may_admit() and len(left) < len(self.lanes.spare) and self._within_budget():
            sequence = self.waiting[0]
            if self.siblings.elder(sequence) is not None:
                break  # it forks, which is done before anybody grows
            if not self.siblings.has_lanes(sequence):
                break
            if self._waits_for_prefix(sequence):
                left.append(self.waiting.popleft())
                continue
            grant = self._ask(sequence)
            if grant is None and self.drain():  # what an undrained move still reads was held until now
                grant = self._ask(sequence)
            if grant is not None:
                self.start(self.waiting.popleft(), grant)
            elif len(self.lanes):
                self.refused_at = self.changes
            else:
                self._alone_refused(sequence)
        self.waiting.extendleft(reversed(left))

    def _within_budget(self) -> bool:
        budget = self.settings.token_budget
        return budget is None or int(self._shares().sum()) < budget

    def _ask(self, sequence: Sequence) -> Grant | None:
        arrival = self.arrival(sequence)
        usage, kin = self.metered.usage(), self.siblings.only_kin(sequence)
        terms = (arrival.length, 0) if kin else self.admission.terms(arrival, self.running(), usage)
        if terms is None:
            return None
        if not sequence.swapped:
            return self.metered.admit(arrival, *terms)
        spare = (usage.free + usage.cached) // self.strategy.memory.token_bytes
        if len(self.lanes) and not kin and spare <= arrival.length + terms[1]:
            return None  # it would be in the way, or could not go on
        return self.metered.swap_in(arrival)

    def _alone_refused(self, sequence: Sequence) -> None:
        """Nobody runs, and there is no room: what lies on the host is computed again, else the request fails."""
        if sequence.swapped:
            self._forget(sequence)
        else:
            self.fail(sequence, f"alone, there was no room for {sequence.known:,} tokens and one more")

    def _forget(self, sequence: Sequence) -> None:
        self.metered.forget(sequence.id)
        self.arrivals.pop(sequence.id, None)
        sequence.swapped = 0
        self.changes += 1

    def _waits_for_prefix(self, sequence: Sequence) -> bool:
        """Whether somebody still in prefill will have more of its prefix than it would find now."""
        lanes = self.lanes
        if not (self.settings.wait_for_prefix and self.metered.finds and lanes.ids is not None) or sequence.swapped:
            return False
        order = lanes.order
        prefill = order[lanes.known[order] - lanes.stored[order] > 1].tolist()
        if not prefill:
            return False
        arrival, unit = self.arrival(sequence), self.strategy.block_size or 1
        found = None
        for lane in prefill:
            if lanes.at(lane).request.space != sequence.request.space:
                continue
            assert arrival.ids is not None
            common = min(shared_tokens(arrival.ids, lanes.tokens(lane)), arrival.length - 1) // unit * unit
            if common > lanes.stored[lane]:
                found = self.metered.lookup(arrival) if found is None else found
                if common > found:
                    self.tally.waits_for_prefix += 1
                    return True
        return False

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

    # --- departures

    def _finish(self, lane: int, now: float) -> None:
        sequence = self.take_off(lane)
        sequence.finish_s = now
        self.end(sequence, "finished", "")

    def _teach(self, sequence: Sequence) -> None:
        """What the axes learn from one that has finished."""
        request, output = sequence.request, sequence.known - sequence.request.prompt_len
        if self.learn is not None:
            self.learn(request, output)
        if self.told_finished is not None:
            self.told_finished(output, request.limit - request.prompt_len)

    def fail(self, sequence: Sequence, reason: str) -> None:
        """The request fails, with every sequence that it has."""
        family = sequence.family
        for one in [sequence] if family is None else list(family.live.values()):
            if one.lane >= 0:
                self.take_off(one.lane)
            else:
                self.waiting.remove(one)
            if one.swapped:
                self._forget(one)
            self.end(one, "failed", reason)

    def end(self, sequence: Sequence, outcome: str, reason: str) -> None:
        self.arrivals.pop(sequence.id, None)
        sequence.outcome, sequence.reason = outcome, reason
        if outcome == "finished" and (self.learn or self.told_finished):
            self._teach(sequence)
        family = sequence.family
        self.tally.num_ended += family is None or self.siblings.ended(family, sequence)
        self.on_end(sequence)

    def take_off(self, lane: int, swap: bool = False) -> Sequence:
        """Off the device; to the host where `swap` asks for it and the host has room."""
        self.tell(lane)
        stored = int(self.lanes.stored[lane])
        kept = min(stored, int(self.lanes.known[lane]) - 1)  # a beam computes its newest token again
        out = swap and kept > 0 and self.metered.swap_out(int(self.lanes.id[lane]), kept)
        sequence = self.lanes.remove(lane)
        if out:
            sequence.swapped = kept
            self.tally.swapped_out_tokens += kept
        else:
            self.tally.swaps_refused += swap
            self.metered.release(sequence.id)
        self.tally.recomputed_tokens += max(0, min(stored, sequence.reached) - sequence.found)
        sequence.reached = max(stored, sequence.reached)
        self.changes += 1
        return sequence

    # --- what the strategy is told, and what it says

    def tell(self, lane: int) -> None:
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
                self.tell(lane)

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
