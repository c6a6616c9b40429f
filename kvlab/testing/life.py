"""The random life of a strategy: what an engine might do with it, in an order that a seed decides."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from kvlab.strategy import Strategy
from kvlab.testing import checks, honesty
from kvlab.testing.character import Character
from kvlab.testing.claims import CLAIMS
from kvlab.testing.landing import Landing
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import Sequence
from kvlab.testing.snapshot import size
from kvlab.testing.trial import Trial
from kvlab.testing.watchdog import rewind


class Life:
    """Sequences come, grow, fork, are cut short, preempted, aborted, and leave. One step at a time."""

    def __init__(self, strategy: Strategy, seed: int, share: float = 0.1) -> None:
        self.rng = rng = random.Random(seed)
        self.strategy, self.memory = strategy, strategy.memory
        self.trial = Trial(strategy, rng, share)
        self.longest = min(strategy.longest, self.memory.max_len)
        self.waiting: list[Sequence] = []
        self.planned: dict[Sequence, int] = {}  # who computes in the next launch, and up to where
        self.size = size(strategy)
        self.character = Character(rng, self.longest)
        self.landing = Landing(self.trial, self.character, rng)

    def live(self, steps: int) -> Counter[str]:
        """So many steps, then the end. Returns what was exercised. Raises RuleError."""
        if self.longest < 2:
            return self.trial.seen
        for _ in range(steps):
            rewind()
            self.step()
        rewind()
        self.end()
        return self.trial.seen

    def step(self) -> None:
        """Plan, carry out the moves, launch. The launch of the step before ends in between, or ended before."""
        trial, rng = self.trial, self.rng
        self.planned = {}
        self._leave()
        for stage in rng.sample((self._grow, self._admit, self._fork), 3):
            stage()
            if rng.random() < 0.2:
                trial.drain()
        trial.drain()
        if trial.flight and trial.harmless() and rng.random() < 0.5:
            trial.apply()  # beside the launch
        self.landing.land()
        trial.apply()
        checks.everything(trial)
        if rng.random() < 0.1:
            self._claim(rng.choice(CLAIMS))
        trial.issue([(sequence, stop) for sequence, stop in self.planned.items() if sequence.seq in trial.running])
        if trial.looks_ahead and trial.flight and rng.random() < 0.8:
            trial.ahead()
        if not self.character.ahead:
            self.landing.land()
        trial.seen["steps"] += 1

    def end(self) -> None:
        """Everybody leaves; nothing may be held then, nor cached after clear()."""
        trial = self.trial
        self.landing.land()
        trial.settle()
        for claim in (*CLAIMS, *[honesty.cache_is_true, honesty.last_one_reaches_longest] * 6):
            self._claim(claim)
        honesty.longest_is_reached(honesty.emptied(trial))
        for sequence in list(trial.running.values()):
            trial.release(sequence, "released at the end")
        for sequence in list(trial.swapped.values()):
            trial.forget(sequence)
        trial.settle()
        honesty.longest_is_reached(honesty.emptied(trial))
        trial.clear()
        trial.settle()
        honesty.nothing_piles_up(self.strategy, self.size)

    def _claim(self, claim: Callable[[Trial], None]) -> None:
        claim(self.trial)
        self.trial.seen["claims checked"] += 1

    # --- departures

    def _leave(self) -> None:
        """Finished and doomed ones are released as soon as no launch touches them; some are aborted."""
        trial, rng = self.trial, self.rng
        if self.waiting and rng.random() < self.character.aborts / 4:
            gone = self.waiting.pop(rng.randrange(len(self.waiting)))
            if gone.swapped:
                trial.forget(gone)
            trial.seen["aborted waiting"] += 1
        if trial.running and rng.random() < self.character.aborts:
            rng.choice(list(trial.running.values())).doomed = True
        for sequence in list(trial.running.values()):
            if sequence.in_flight:
                continue
            if sequence.doomed:
                trial.release(sequence, "aborted" if sequence.done else "aborted unwritten")
            elif sequence.done >= len(sequence.ids):
                trial.release(sequence, "finished")
        if rng.random() < self.character.swaps / 4:
            self._swap_somebody()
        told = trial.tells or trial.windowed  # a cache was told of what may be cut off, a ring has it no more
        if rng.random() < self.character.drafts / 8 and not told:
            self._cut_back()
        if rng.random() < 0.01:
            trial.clear()

    def _swap_somebody(self) -> None:
        """One or two who might as well stay are preempted: siblings, as often as not."""
        able = [s for s in self.trial.running.values() if s.done and not s.in_flight and not s.doomed]
        for sequence in able[-self.rng.choice((1, 1, 2)) :]:
            if self.trial.swap_out(sequence):
                self.waiting.append(sequence)

    def _cut_back(self) -> None:
        """Somebody loses tokens that were stored long ago, and that forks may share."""
        able = [s for s in self.trial.running.values() if s.done > 1 and not s.in_flight and not s.doomed]
        if able:
            sequence = self.rng.choice(able)
            self.landing.drop(sequence, self.rng.randrange(1, sequence.done))

    # --- growth

    def _grow(self) -> None:
        trial, rng = self.trial, self.rng
        order = list(trial.running.values())
        if rng.random() < 0.3:
            rng.shuffle(order)
        for sequence in order:
            if sequence.seq not in trial.running or sequence.doomed or self._busy(sequence):
                continue
            stop = self._stop(sequence)
            if stop > sequence.issued and (stop <= sequence.room or self._extend(sequence, stop)):
                self.planned[sequence] = stop

    def _stop(self, sequence: Sequence) -> int:
        """Up to where it computes in the next launch: a chunk of what is known, or a token and drafts."""
        last = min(sequence.issued + self.memory.chunk, len(sequence.ids))
        if sequence.issued < sequence.known:
            return min(last, sequence.known)
        drafts = self.rng.randint(1, 3) if self.rng.random() < self.character.drafts else 0
        return min(last, sequence.issued + 1 + drafts)

    def _busy(self, sequence: Sequence) -> bool:
        """It is planned already, or a launch with its drafts is in flight: which of them stay is not known yet."""
        return sequence in self.planned or any(
            w.sequence is sequence and w.stop - w.start > 1 and w.start >= w.sequence.prompt for w in self.trial.flight
        )

    def _extend(self, sequence: Sequence, stop: int) -> bool:
        """Ask for room; whoever came last is preempted until there is some."""
        trial, rng = self.trial, self.rng
        if rng.random() < 0.1:  # growth ahead
            more = min(stop + rng.randint(1, rng.choice((8, 8, 30))), sequence.limit)
            if trial.extend(sequence, more):
                return True
        while not trial.extend(sequence, stop):
            if trial.flight:
                self.landing.land()
                if sequence.done >= len(sequence.ids) or sequence.room < sequence.done:
                    return False
                continue
            others = [other for other in trial.running.values() if other is not sequence]
            if not others:
                if trial.drain():
                    trial.seen["drained to ask again"] += 1
                    continue
                text = f"sequence {sequence.seq} is alone and may not grow from {sequence.issued} to {stop}"
                raise RuleError("longest", f"{text}; longest = {self.strategy.longest}: {self.strategy.usage()}")
            self._preempt(others[-1] if rng.random() < 0.8 else rng.choice(others))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.planned.pop(sequence, None)
        swap = sequence.done > 0 and self.rng.random() < self.character.swaps
        if not (swap and self.trial.swap_out(sequence)):
            self.trial.release(sequence, "preempted")
            sequence.stopped()
        self.waiting.insert(0, sequence)

    # --- arrivals

    def _admit(self) -> None:
        trial, rng = self.trial, self.rng
        for _ in range(rng.randint(0, self.character.arrivals)):
            if len(trial.running) >= self.memory.max_seqs:
                return
            if not self.waiting or rng.random() < 0.3:
                self.waiting.append(self.character.newcomer(trial.told.prefixes))
            sequence = self.waiting[0] if rng.random() < 0.8 else rng.choice(self.waiting)
            leave = rng.choice((0, 0, 0, rng.randint(1, 12)))
            new = rng.choice((self.memory.chunk, sequence.known, rng.randint(1, self.memory.chunk)))
            if not (trial.swap_in(sequence) if sequence.swapped else trial.admit(sequence, new, leave)):
                continue
            self.waiting.remove(sequence)
            if rng.random() < self.character.aborts:  # before the moves for it are drained
                trial.release(sequence, "aborted at once")
                if rng.random() < 0.5:
                    trial.clear()
                continue
            stop = min(sequence.done + min(new, self.memory.chunk), sequence.known, sequence.room)
            if stop > sequence.done:
                self.planned[sequence] = stop

    def _fork(self) -> None:
        trial, rng = self.trial, self.rng
        if rng.random() >= self.character.forks or len(trial.running) >= self.memory.max_seqs:
            return
        able = [s for s in trial.running.values() if s.done and not s.in_flight and not s.doomed]
        if not able:
            return
        parent = rng.choice(able)
        length = parent.done if trial.windowed or rng.random() < 0.7 else rng.randint(1, parent.done)
        child = self.character.child(parent, length)
        if trial.fork(parent, child):
            self.planned.pop(parent, None)
            if rng.random() < 0.3:
                trial.release(parent, "left to its child")
