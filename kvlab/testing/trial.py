"""One strategy on trial: everything an engine does with it, each call judged as it returns.

Speaks to the strategy exactly as DESIGN and docs/strategy.md promise, one launch at a time or with one in
flight. Every call can be written down, so that a failure becomes a program that repeats it.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Arrival, Copy, Grant, Move, Strategy
from kvlab.testing import answers, checks, honesty, script
from kvlab.testing.gather import gather_from
from kvlab.testing.places import first_live, first_part, values, windowed
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import Sequence
from kvlab.testing.shadow import Shadows
from kvlab.testing.snapshot import Snapshot

REPEATED = 0.2  # share of refusals that are tried again on a copy


Told = tuple[list[int], int]  # ids, space


class Write(NamedTuple):
    """What one launch does for a sequence: it stores the tokens [start, stop) and reads [0, stop)."""

    sequence: Sequence
    start: int
    stop: int


class Trial:
    """`share`: of the calls that are compared before and after, and of the costly checks."""

    def __init__(self, strategy: Strategy, rng: random.Random, share: float = 1.0) -> None:
        self.strategy, self.rng, self.share = strategy, rng, share
        self.shadow = Shadows(strategy)
        self.running: dict[int, Sequence] = {}
        self.flight: list[Write] = []
        self.flight_slots: list[NDArray[np.int64]] = []  # by group, of all that it reads, as the tables said then
        self.undone: list[Move] = []  # drained, not applied yet
        self.left = False  # somebody, since the last drain
        self.tight = False  # the last question was refused
        self.seen: Counter[str] = Counter()  # what was exercised
        self.told_ids: list[Told] = []  # prefixes that the strategy may have published
        self.told_at: dict[int, tuple[Told, int]] = {}  # a token's value -> such a prefix, and its length up to there
        self.log: list[str] | None = None  # lines of a program that repeats the calls
        self.scratch = np.zeros(strategy.memory.max_len, np.int32)
        self.windowed = windowed(strategy)
        self.finds = type(strategy).lookup is not Strategy.lookup
        self.tells = type(strategy).wrote is not Strategy.wrote
        self.looks_ahead = type(strategy).ahead is not Strategy.ahead
        self.capacity = answers.capacity_at_start(strategy)

    def copy(self) -> Trial:
        """A trial of its own in the same state; no launch may be in flight. Failures go down in the same program."""
        made = copy.copy(self)
        made.strategy = Snapshot(self.strategy).copy()
        made.shadow = self.shadow.copy(made.strategy)
        made.running = {seq: sequence.copy() for seq, sequence in self.running.items()}
        made.undone, made.told_ids, made.told_at = list(self.undone), list(self.told_ids), dict(self.told_at)
        made.flight, made.seen = [], Counter()
        return made

    # --- what a scheduler asks

    def lookup(self, arrival: Arrival) -> int:
        before = self._before()
        hit = self.strategy.lookup(arrival)
        self._unchanged(before, self.strategy, "lookup", (arrival,))
        return hit

    def admit(self, sequence: Sequence, new: int, leave: int = 0) -> bool:
        """Whether it runs now."""
        arrival = sequence.arrival()
        looked = self.lookup(arrival)
        grant: Grant | None = self._ask("admit", (arrival, new, leave))
        if grant is None:
            return False
        answers.admitted(self.strategy, arrival, grant, looked, new, leave)
        sequence.started(*grant)
        self.running[sequence.seq] = sequence
        self.seen["admitted"] += 1
        self.seen["hits"] += grant.hit > 0
        self.seen["hit tokens"] += grant.hit
        return True

    def extend(self, sequence: Sequence, upto: int) -> bool:
        """Whether it may hold `upto` tokens now."""
        self.tell(sequence)
        room: int | None = self._ask("extend", (sequence.seq, sequence.issued, upto))
        if room is None:
            return False
        if room < upto:
            text = f"sequence {sequence.seq} asked for {upto} tokens and was given a room of {room}"
            raise RuleError("room", text, f"strategy.extend({sequence.seq}, {sequence.issued}, {upto}) >= {upto}")
        if room < (sequence.said or 0):
            text = f"sequence {sequence.seq}, which asked for more, had a room of {sequence.said} and now has {room}"
            again = f"strategy.extend({sequence.seq}, {sequence.issued}, {upto})"
            raise RuleError("room", text, f"{again} >= {sequence.said}")
        sequence.room = sequence.said = room
        self.seen["extended"] += 1
        return True

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        """Whether `child`, which begins with the parent's first child.known tokens, runs beside it."""
        if self.rng.random() < 0.5:  # a cache may not have heard of all that they share
            self.tell(parent)
        arrival = child.arrival()
        grant: Grant | None = self._ask("fork", (parent.seq, arrival))
        if grant is None:
            return False
        answers.forked(parent.seq, arrival, grant)
        child.started(grant.hit, grant.room)
        child.room, parent.room = child.done, parent.issued  # both ask before their next token
        child.said = grant.room
        self.running[child.seq] = child
        if child.known < parent.done and parent.told:
            child.behind = parent.ids[: parent.done], parent.space
            self.told_ids.append(child.behind)  # what it published may be written by the child, who shares a part of it
        self.seen["forked"] += 1
        return True

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Its tokens from `length` on never were."""
        self._do("truncate", (sequence.seq, length))
        sequence.done = sequence.issued = sequence.room = length
        sequence.said = None
        self.seen["truncated"] += 1

    def tell(self, sequence: Sequence) -> None:
        """What is stored, for caches. The array is the engine's own, and holds something else right after."""
        if not self.tells:
            return
        ids = None
        if sequence.origin is None:
            self.scratch[: sequence.done] = sequence.ids[: sequence.done]
            ids = self.scratch[: sequence.done]
            ids.flags.writeable = False
            self._remember(sequence)
        self._do("wrote", (sequence.seq, sequence.done, ids))
        self.scratch[: sequence.done] = 1
        sequence.told = sequence.done

    def release(self, sequence: Sequence, why: str) -> None:
        self.tell(sequence)
        self._do("release", (sequence.seq,))
        self.left = True
        del self.running[sequence.seq]
        self.seen[why] += 1

    def clear(self) -> None:
        self._note("clear", ())
        honesty.clearing_drops_the_cache(self.strategy)
        self.seen["cleared"] += 1

    # --- what the store and a launch do

    def drain(self) -> bool:
        """Take the moves over; whether there were any."""
        if not self.left:
            checks.sources_are_held(self)
        self.left = False
        moves = self.strategy.drain()
        self.undone += moves
        return bool(moves)

    def apply(self) -> None:
        """Carry out what was drained."""
        moves, self.undone = self.undone, []
        for move in moves:
            self.seen[type(move).__name__.lower()] += 1
        if moves:
            self._note("apply", ())
        self.shadow.apply(moves)

    def ahead(self) -> None:
        """What the strategy would have done beside the launch in flight; nobody's room or bytes change by it."""
        if self.strategy.moves:  # of the next plan: an engine would drain them first
            return
        before = self.strategy.usage()
        self._note("ahead", ())
        self.strategy.ahead()
        after = self.strategy.usage()
        if after._replace(backed=before.backed) != before:
            raise RuleError("ahead", f"ahead() changed {before} to {after}")
        self.drain()
        self.strategy.ahead()
        if self.strategy.moves:
            raise RuleError("ahead", f"asked twice in a row, ahead() adds {self.strategy.moves}")
        checks.a_launch_does_not_notice(self.shadow.pools[0], self.undone, np.concatenate(self.flight_slots))
        self.seen["moves beside a launch"] += len(self.undone)
        if self.undone:
            self.apply()
            checks.everything(self)

    def harmless(self) -> bool:
        """Whether what was drained may be carried out beside a running launch."""
        return not any(isinstance(move, Copy) for move in self.undone)

    def issue(self, plan: list[tuple[Sequence, int]]) -> None:
        """Launch: each sequence writes its tokens up to `stop` and reads all of them. Tables are read now."""
        for sequence, stop in plan:
            for group in range(len(self.strategy.groups)):
                checks.table_covers(self.strategy, sequence, group)
            self.flight.append(Write(sequence, sequence.issued, stop))
            sequence.issued = stop
            sequence.known = max(sequence.known, stop)
        seqs, stops = [sequence.seq for sequence, _ in plan], [stop for _, stop in plan]
        self.flight_slots = [
            gather_from(table, seqs, self._read_from(group, self.flight), stops, self.strategy.block_size)
            for group, table in enumerate(self.strategy.tables)
        ]

    def complete(self) -> list[Write]:
        """The launch in flight is over."""
        flight, self.flight = self.flight, []
        if not flight:
            return flight
        sequences, overwritten = [write.sequence for write in flight], self._store(flight)
        for write in flight:
            self._note("launch", write)
            write.sequence.done = write.stop
        self.seen["written tokens"] += sum(write.stop - write.start for write in flight)
        for group, (shadow, slot_T) in enumerate(zip(self.shadow.of, self.flight_slots, strict=True)):
            checks.all_hold(shadow, sequences, group, self._read_from(group, flight), slot_T)
        for (ids, space), length in overwritten:
            self.probe(guest_of(ids[:length], space))
        return flight

    def settle(self) -> None:
        """Drain and apply, with no launch in flight, and look at everything."""
        self.drain()
        self.apply()
        checks.everything(self)

    def probe(self, guest: Sequence) -> None:
        """On copies: admit the guest, and find in place what it hits."""
        strategy = Snapshot(self.strategy).copy()
        shadow = self.shadow.copy(strategy)
        shadow.apply(self.undone)
        looked = strategy.lookup(guest.arrival())
        grant = strategy.admit(guest.arrival(), 1) if looked else None
        shadow.apply(strategy.drain())
        if grant is None:
            return
        answers.admitted(strategy, guest.arrival(), grant, looked, 1, 0)
        try:
            for group, table in enumerate(strategy.tables):
                start = first_live(strategy, group, grant.hit)
                slot_N = gather_from(table, [guest.seq], [start], [grant.hit], strategy.block_size)
                checks.holds(shadow.of[group], guest, group, start, slot_N)
        except RuleError:
            self._note("admit", (guest.arrival(), 1, 0))
            self._note("apply", ())
            raise

    # --- inside

    def _ask(self, name: str, args: tuple[Any, ...]) -> Any:
        """A call that may be refused; a refusal changes nothing."""
        before, counted = self._before(), answers.Counted(self.strategy)
        answer = self._do(name, args)
        counted.judge(self.strategy, name, answer)
        self.tight = answer is None
        if answer is None:
            self.seen[f"{name} refused"] += 1
            self._unchanged(before, self.strategy, name, args, " is refused")
            if before is None and self.rng.random() < REPEATED:
                now = Snapshot(self.strategy)  # cheaper than one before every call, and sees all but what is done once
                again = now.copy()
                getattr(again, name)(*args)
                self._unchanged(now, again, name, args, " is refused")
        return answer

    def _do(self, name: str, args: tuple[Any, ...]) -> Any:
        self._note(name, args)
        return getattr(self.strategy, name)(*args)

    def _before(self) -> Snapshot | None:
        share = min(1.0, 4 * self.share) if self.tight else self.share  # one refusal is seldom alone
        return Snapshot(self.strategy) if self.rng.random() < share else None

    def _unchanged(
        self, before: Snapshot | None, after: Strategy, name: str, args: tuple[Any, ...], how: str = ""
    ) -> None:
        if before is None:
            return
        self.seen["purity checked"] += 1
        if changed := before.difference(after):
            rule = "lookup is pure" if name == "lookup" else "refusal"
            raise RuleError(rule, f"{name} of sequence {_seq(name, args)}{how}, but strategy{changed}")

    def _read_from(self, group: int, flight: list[Write]) -> list[int]:
        """The first token that each reads."""
        return [first_live(self.strategy, group, write.start) for write in flight]

    def _store(self, flight: list[Write]) -> list[tuple[Told, int]]:
        """What a launch writes, in each group. Prefixes that it writes over, though lookup still finds them."""
        overwritten: list[tuple[Told, int]] = []
        for group, (shadow, slot_T) in enumerate(zip(self.shadow.of, self.flight_slots, strict=True)):
            starts, stops = [write.start for write in flight], [write.stop for write in flight]
            new_T = ~first_part(self._read_from(group, flight), starts, stops)
            if not group:
                overwritten = self._published_before(slot_T[new_T])
            value_T = np.concatenate([values(write.sequence, group, write.start, write.stop) for write in flight])
            shadow.write(slot_T[new_T], value_T)
        return overwritten

    def _published_before(self, slot_N: NDArray[np.int64]) -> list[tuple[Told, int]]:
        """A prefix that a launch writes over the end of, though lookup still finds it; of several any one."""
        shadow = self.shadow.of[0]
        if not self.told_at or (piece := shadow.pieces(slot_N)).min(initial=0) < 0:
            return []
        old = shadow.content[piece[:: shadow.per_token]].tolist()
        found = [self.told_at[value] for value in old if value in self.told_at]
        found = [(told, length) for told, length in found if length < self.strategy.longest]
        return [
            (told, length)
            for told, length in self.rng.sample(found, min(1, len(found)))
            if self.strategy.lookup(guest_of(told[0][:length], told[1]).arrival()) >= length
        ]

    def _remember(self, sequence: Sequence) -> None:
        """That a cache has heard of all that is stored of it."""
        if sequence.told == sequence.done:
            return
        told = sequence.ids[: sequence.done], sequence.space
        for length, value in enumerate(sequence.value[sequence.told : sequence.done].tolist(), sequence.told + 1):
            self.told_at[value] = told, length
        if len(self.told_ids) > 40:
            self.told_ids[self.rng.randrange(40)] = self.told_ids.pop()
        self.told_ids.append(told)

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        if self.log is not None:
            self.log.append(script.call(name, args))


def guest_of(ids: list[int], space: int) -> Sequence:
    """One that comes with these ids and one more."""
    known = len(ids) + 1
    return Sequence(honesty.NEW, [*ids, 1], known, known, known, known, space)


def _seq(name: str, args: tuple[Any, ...]) -> int:
    first = args[-1] if name == "fork" else args[0]
    return first.seq if isinstance(first, Arrival) else int(first)
