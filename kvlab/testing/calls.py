"""What a scheduler asks of a strategy, each call judged as it returns.

Speaks to the strategy exactly as docs/strategy.md promises. Every call can be written down, so that a failure
becomes a program that repeats it.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np

from kvlab.strategy import Arrival, Grant, Strategy, Usage
from kvlab.testing import answers, honesty, script
from kvlab.testing.places import windowed
from kvlab.testing.prefixes import Prefixes
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import Sequence
from kvlab.testing.snapshot import Snapshot

REPEATED = 0.2  # share of refusals that are tried again on a copy
LIKELY, AGAIN, SELDOM = 0.5, 0.75, 1.5  # powers of the share of calls that are compared before and after


class Calls:
    """`share`: of the calls that are compared before and after; of those that a refusal is expected of, more."""

    def __init__(self, strategy: Strategy, rng: random.Random, share: float = 1.0) -> None:
        self.strategy, self.rng, self.share = strategy, rng, share
        self.running: dict[int, Sequence] = {}
        self.swapped: dict[int, Sequence] = {}  # those that lie on the host
        self.left = False  # somebody, since the last drain
        self.tight = False  # the last question was refused
        self.seen: Counter[str] = Counter()  # what was exercised
        self.told = Prefixes(rng)
        self.log: list[str] | None = None  # lines of a program that repeats the calls
        self.scratch = np.zeros(strategy.memory.max_len, np.int32)
        self.windowed = windowed(strategy)
        self.finds = type(strategy).lookup is not Strategy.lookup
        self.tells = type(strategy).wrote is not Strategy.wrote
        self.capacity = answers.capacity_at_start(strategy)
        self.taken: Snapshot | None = None  # of the strategy as it is; None: it may have changed since the last one

    def now(self) -> Snapshot:
        """The strategy as it is; taken once for all who ask between two calls that may change it."""
        if self.taken is None:
            self.taken = Snapshot(self.strategy)
        return self.taken

    # --- the calls

    def lookup(self, arrival: Arrival) -> int:
        before = self.now() if self.rng.random() < self.share else None
        hit = self.strategy.lookup(arrival)
        self._unchanged(before, self.strategy, "lookup", (arrival,))
        return hit

    def admit(self, sequence: Sequence, new: int, leave: int = 0) -> bool:
        """Whether it runs now."""
        arrival = sequence.arrival()
        looked = self.lookup(arrival)
        grant: Grant | None = self._ask("admit", (arrival, new, leave), min(new, arrival.length) + leave)
        if grant is None:
            return False
        answers.admitted(self.strategy, arrival, grant, looked, new, leave)
        sequence.started(*grant)
        sequence.told = grant.hit  # by others
        self.running[sequence.seq] = sequence
        self.seen["admitted"] += 1
        self.seen["hits"] += grant.hit > 0
        self.seen["hit tokens"] += grant.hit
        return True

    def extend(self, sequence: Sequence, upto: int) -> bool:
        """Whether it may hold `upto` tokens now."""
        self.tell(sequence)
        room: int | None = self._ask("extend", (sequence.seq, sequence.issued, upto), upto - sequence.issued)
        if room is None:
            return False
        answers.extended(sequence, upto, room)
        sequence.room = sequence.said = room
        self.seen["extended"] += 1
        return True

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        """Whether `child`, which begins with the parent's first child.known tokens, runs beside it."""
        if self.rng.random() < 0.5:  # a cache may not have heard of all that they share
            self.tell(parent)
        arrival = child.arrival()
        grant: Grant | None = self._ask("fork", (parent.seq, arrival), 1)
        if grant is None:
            return False
        answers.forked(parent.seq, arrival, grant)
        child.started(grant.hit, grant.room)
        child.room, parent.room = child.done, parent.issued  # both ask before their next token
        child.said, child.told = grant.room, min(parent.told, child.known)
        self.running[child.seq] = child
        if child.known < parent.done and parent.told:
            child.behind = parent.ids[: parent.done], parent.space
            self.told.prefixes.append(child.behind)  # what it published the child may write, who shares a part of it
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
            self.told.add(sequence)
        self._do("wrote", (sequence.seq, sequence.done, ids))
        self.scratch[: sequence.done] = 1
        sequence.told = sequence.done

    def release(self, sequence: Sequence, why: str) -> None:
        self.tell(sequence)
        self._do("release", (sequence.seq,))
        self.left = True
        del self.running[sequence.seq]
        self.seen[why] += 1

    def swap_out(self, sequence: Sequence) -> bool:
        """Whether it lies on the host now, and no longer on the device."""
        self.tell(sequence)
        if not self._ask("swap_out", (sequence.seq, sequence.done), 0):
            return False
        self.left = True
        self.swapped[sequence.seq] = self.running.pop(sequence.seq)
        sequence.stopped(swapped=True)
        self.seen["swapped out"] += 1
        return True

    def swap_in(self, sequence: Sequence) -> bool:
        """Whether it runs again."""
        arrival = sequence.arrival()
        grant: Grant | None = self._ask("swap_in", (arrival,), arrival.length)
        if grant is None:
            return False
        answers.back(arrival, grant)
        sequence.started(*grant)
        sequence.room = sequence.done  # it asks before its next token
        self.running[sequence.seq] = self.swapped.pop(sequence.seq)
        self.seen["swapped in"] += 1
        return True

    def forget(self, sequence: Sequence) -> None:
        """It will not be back from the host."""
        self._do("forget", (sequence.seq,))
        del self.swapped[sequence.seq]
        self.seen["forgotten on the host"] += 1

    def clear(self) -> None:
        self._note("clear", ())
        self.taken = None
        honesty.clearing_drops_the_cache(self.strategy)
        self.seen["cleared"] += 1

    # --- how they are judged

    def _ask(self, name: str, args: tuple[Any, ...], tokens: int) -> Any:
        """A call for so many tokens, that may be refused; a refusal changes nothing."""
        usage = self.strategy.usage()
        before, counted = self._before(usage, tokens), answers.Counted(self.strategy, usage)
        answer = self._do(name, args)
        counted.judge(self.strategy, name, answer)
        self.tight = answer in (None, False)
        if self.tight:
            self.seen[f"{name} refused"] += 1
            self._unchanged(before, self.strategy, name, args, " is refused")
            if before is None and self.rng.random() < REPEATED:
                now = self.now()  # cheaper than one before every call, and sees all but what is done once
                again = now.copy()
                getattr(again, name)(*args)
                self._unchanged(now, again, name, args, " is refused")
        return answer

    def _do(self, name: str, args: tuple[Any, ...]) -> Any:
        self._note(name, args)
        self.taken = None
        return getattr(self.strategy, name)(*args)

    def _before(self, usage: Usage, tokens: int) -> Snapshot | None:
        """Chosen so that few are taken in vain: what is granted is not compared."""
        short = usage.free + usage.cached < tokens * self.strategy.memory.token_bytes
        power = LIKELY if short else AGAIN if self.tight else SELDOM  # one refusal is seldom alone
        return self.now() if self.rng.random() < self.share**power else None

    def _unchanged(
        self, before: Snapshot | None, after: Strategy, name: str, args: tuple[Any, ...], how: str = ""
    ) -> None:
        if before is None:
            return
        self.seen["purity checked"] += 1
        if changed := before.difference(after):
            rule = "lookup is pure" if name == "lookup" else "refusal"
            raise RuleError(rule, f"{name} of sequence {_seq(name, args)}{how}, but strategy{changed}")
        self.taken = before

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        if self.log is not None:
            self.log.append(script.call(name, args))


def _seq(name: str, args: tuple[Any, ...]) -> int:
    first = args[-1] if name == "fork" else args[0]
    return first.seq if isinstance(first, Arrival) else int(first)
