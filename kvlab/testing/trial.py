"""One strategy on trial: the scheduler's calls, the store's moves, and launches, one at a time or one in flight."""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Drop, Map, Move, Strategy, Unmap
from kvlab.testing import answers, checks
from kvlab.testing.calls import Calls
from kvlab.testing.gather import gather_from
from kvlab.testing.places import first_live, first_part, packed_values
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import NEW, Sequence
from kvlab.testing.shadow import Shadows

FOLLOWED = 0.5  # share of the launches that write over the end of a told prefix after which it is looked for


class Write(NamedTuple):
    """What one launch does for a sequence: it stores the tokens [start, stop) and reads [0, stop)."""

    sequence: Sequence
    start: int
    stop: int


class Trial(Calls):
    """What it holds is in `shadow`, which remembers what every slot should hold."""

    def __init__(self, strategy: Strategy, rng: random.Random, share: float = 1.0) -> None:
        super().__init__(strategy, rng, share)
        self.shadow = Shadows(strategy)
        self.flight: list[Write] = []
        self.flight_slots: list[NDArray[np.int64]] = []  # by group, of all that it reads, as the tables said then
        self.undone: list[Move] = []  # drained, not applied yet
        self.looks_ahead = type(strategy).ahead is not Strategy.ahead

    def copy(self) -> Trial:
        """A trial of its own in the same state; no launch may be in flight. Failures go down in the same program."""
        made = copy.copy(self)
        made.strategy, made.taken = self.now().copy(), None
        made.shadow = self.shadow.copy()
        made.running = {seq: sequence.copy() for seq, sequence in self.running.items()}
        made.swapped = {seq: sequence.copy() for seq, sequence in self.swapped.items()}
        made.undone, made.told = list(self.undone), self.told.copy()
        made.flight, made.seen = [], Counter()
        return made

    # --- the store at work

    def drain(self) -> bool:
        """Take the moves over; whether there were any."""
        if not self.left:
            checks.sources_are_held(self)
        self.left, self.taken = False, None
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

    def settle(self) -> None:
        """Drain and apply, with no launch in flight, and look at everything."""
        self.drain()
        self.apply()
        checks.everything(self)

    def harmless(self) -> bool:
        """Whether what was drained may be carried out beside a running launch."""
        return all(isinstance(move, Map | Unmap | Drop) for move in self.undone)

    def ahead(self) -> None:
        """What the strategy would have done beside the launch in flight; nobody's room or bytes change by it."""
        if self.strategy.moves:  # of the next plan: an engine would drain them first
            return
        before = self.strategy.usage()
        self._do("ahead", ())
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

    # --- launches

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
        sequences, values = [write.sequence for write in flight], self._values(flight)
        overwritten = self._store(flight, values)
        for write in flight:
            self._note("launch", write)
            write.sequence.done = write.stop
        self.seen["written tokens"] += sum(write.stop - write.start for write in flight)
        for group, shadow in enumerate(self.shadow.of):
            starts, slot_T = self._read_from(group, flight), self.flight_slots[group]
            checks.all_hold(shadow, sequences, group, starts, slot_T, values[group])
        for guest in overwritten:
            self.probe(guest)
        return flight

    def _read_from(self, group: int, flight: list[Write]) -> list[int]:
        """The first token that each reads."""
        return [first_live(self.strategy, group, write.start) for write in flight]

    def _values(self, flight: list[Write]) -> list[NDArray[np.int64]]:
        """By group, what all that a launch reads is when it is over."""
        sequences, stops = [write.sequence for write in flight], [write.stop for write in flight]
        return [
            packed_values(sequences, group, self._read_from(group, flight), stops)
            for group in range(len(self.shadow.of))
        ]

    def _store(self, flight: list[Write], values: list[NDArray[np.int64]]) -> list[Sequence]:
        """What a launch writes, in each group. Who would come for what it writes over, though lookup still finds it."""
        overwritten: list[Sequence] = []
        starts, stops = [write.start for write in flight], [write.stop for write in flight]
        for group, (shadow, slot_T) in enumerate(zip(self.shadow.of, self.flight_slots, strict=True)):
            new_T = ~first_part(self._read_from(group, flight), starts, stops)
            if not group:
                overwritten = self._published_before(slot_T[new_T])
            shadow.write(slot_T[new_T], values[group][new_T])
        return overwritten

    # --- what a cache promises

    def _published_before(self, slot_N: NDArray[np.int64]) -> list[Sequence]:
        """Who comes for a told prefix whose end a launch writes over, though lookup finds it; one at most."""
        shadow = self.shadow.of[0]
        if not self.told.batch or (piece := shadow.pieces(slot_N)).min(initial=0) < 0:
            return []
        old = shadow.content[piece[:: shadow.per_token]].tolist()
        found = self.told.ending_in(old, self.strategy.longest)
        if not found or self.rng.random() >= FOLLOWED:
            return []
        ids, space = self.rng.choice(found)
        guest = guest_of(ids, space)
        return [guest] if self.strategy.lookup(guest.arrival()) >= len(ids) else []

    def probe(self, guest: Sequence) -> None:
        """On copies: admit the guest, and find in place what it hits."""
        strategy, arrival = self.now().copy(), guest.arrival()
        looked = strategy.lookup(arrival)
        grant = strategy.admit(arrival, 1) if looked else None
        moves = [*self.undone, *strategy.drain()]
        shadow = self.shadow.copy() if moves else self.shadow
        if moves:
            shadow.apply(moves)
        if grant is None:
            return
        answers.admitted(strategy, arrival, grant, looked, 1, 0)
        try:
            for group, table in enumerate(strategy.tables):
                start = first_live(strategy, group, grant.hit)
                slot_N = gather_from(table, [guest.seq], [start], [grant.hit], strategy.block_size)
                checks.holds(shadow.of[group], guest, group, start, slot_N)
        except RuleError:
            self._note("admit", (arrival, 1, 0))
            self._note("apply", ())
            raise


def guest_of(ids: list[int], space: int) -> Sequence:
    """One that comes with these ids and one more."""
    known = len(ids) + 1
    return Sequence(NEW, [*ids, 1], known, known, known, known, space)
