"""Short scenes on a copy of a trial: what a random life comes to too seldom, each call judged as in the life itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvlab.testing import checks
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import Sequence

if TYPE_CHECKING:
    from kvlab.testing.trial import Trial

FIRST = 2 * 10**6  # the first of the ids of those who act


@contextmanager
def scene(trial: Trial) -> Iterator[Trial]:
    """A copy to act on. Only where something fails do its calls stay in the program that repeats it."""
    calls = len(trial.log or ())
    yield trial.copy()
    if trial.log is not None:
        del trial.log[calls:]


def seats_run_out(trial: Trial) -> None:
    """Where max_seqs run, arrivals and forks are refused and nothing changes; then all the forks grow at once."""
    seats = trial.strategy.memory.max_seqs
    with scene(trial) as copy:
        copy.settle()
        for seq in range(FIRST, FIRST + seats - len(copy.running)):
            if not forked(copy, seq) and not copy.admit(newcomer(copy, seq), 1):
                return
        if largest := copy.strategy.usage().largest:
            raise RuleError("largest", f"usage().largest = {largest}, but max_seqs = {seats} sequences run")
        copy.share = 1.0
        if copy.admit(newcomer(copy, FIRST + seats), 1) or forked(copy, FIRST + seats):
            raise RuleError("seats", f"{len(copy.running)} sequences run, but max_seqs = {seats}")
        for sequence in list(copy.running.values()):
            if sequence.seq >= FIRST:
                more = copy.rng.randint(1, 3)
                compute(copy, sequence, min(max(sequence.known, sequence.issued + more), longest(copy, sequence)))
        copy.settle()
        for sequence in list(copy.running.values())[:: copy.rng.choice((1, -1))]:
            copy.release(sequence, "left")
        copy.settle()


def somebody_leaps(trial: Trial) -> None:
    """A sequence, alone or with a fork, grows far in one go, is cut back, and grows again."""
    with scene(trial) as copy:
        able = [sequence for sequence in copy.running.values() if sequence.done]
        if not able:
            return
        copy.settle()
        rng, sequence = copy.rng, copy.rng.choice(able)
        if rng.random() < 0.5 and len(copy.running) < copy.strategy.memory.max_seqs:
            forked(copy, FIRST, sequence)
        for _ in range(2):
            last = longest(copy, sequence)
            if sequence.done >= last or not compute(copy, sequence, rng.randint(sequence.done + 1, last)):
                return
            checks.everything(copy)
            shortest = max(1, sequence.told)
            if shortest < sequence.done and not copy.windowed:
                length = rng.randint(shortest, sequence.done - 1)
                sequence.ids, sequence.value, sequence.known = sequence.ids[:length], sequence.value[:length], length
                copy.truncate(sequence, length)
                copy.settle()


def child_outlives_its_parent(trial: Trial) -> None:
    """A fork that is left alone reaches `longest` too, though a cache was told of all of its longer parent."""
    with scene(trial) as copy:
        for sequence in list(copy.running.values()):
            copy.release(sequence, "left")
        copy.settle()
        last = copy.strategy.longest
        parent = actor(FIRST, [copy.rng.randint(1, 2) for _ in range(last)], last)
        if last < 2 or copy.windowed or not copy.admit(parent, copy.strategy.memory.chunk):
            return
        rise(copy, parent)
        copy.tell(parent)
        child = actor(FIRST + 1, parent.ids[: copy.rng.randint(max(1, last - 9), last - 1)], last)
        if not copy.fork(parent, child):
            return
        copy.release(parent, "left")
        copy.settle()
        child.lengthen([3] * (last - child.known))
        rise(copy, child)
        copy.probe(actor(FIRST + 2, parent.ids, last))


def a_family_is_swapped(trial: Trial) -> None:
    """Somebody and his forks go to the host and come back, in any order; who is here meanwhile grows or forks."""
    with scene(trial) as copy:
        able = [sequence for sequence in copy.running.values() if sequence.done]
        if not able or not copy.strategy.memory.host_bytes:
            return
        copy.settle()
        rng, seats = copy.rng, copy.strategy.memory.max_seqs
        family, gone = [rng.choice(able)], list[Sequence]()
        for seq in range(FIRST, FIRST + 10):
            parent = rng.choice(family) if family else None
            if parent and len(copy.running) < seats and rng.random() < 0.5 and forked(copy, seq, parent):
                family.append(copy.running[seq])
            elif parent and rng.random() < 0.6:
                if copy.swap_out(parent):
                    family.remove(parent)
                    gone.append(parent)
            elif parent and parent.done < longest(copy, parent):
                compute(copy, parent, parent.done + 1)
            if gone and len(copy.running) < seats and rng.random() < 0.4 and copy.swap_in(gone[0]):
                family.append(gone.pop(0))
            copy.settle()
        for sequence in gone:
            copy.forget(sequence)
        copy.settle()


def swapped_ones_come_back(trial: Trial) -> None:
    """Each of those on the host finds room when all others have left, has all its tokens, and goes on."""
    with scene(trial) as copy:
        for sequence in list(copy.running.values()):
            copy.release(sequence, "left")
        for sequence in list(copy.swapped.values()):
            copy.settle()
            if not copy.swap_in(sequence):
                text = f"sequence {sequence.seq} of {sequence.swapped} tokens is alone and may not come back"
                raise RuleError("swap", f"{text} from the host; longest = {copy.strategy.longest}")
            copy.settle()
            if sequence.done < longest(copy, sequence):
                compute(copy, sequence, sequence.done + 1)
            copy.release(sequence, "left")
        copy.settle()


def longest(trial: Trial, sequence: Sequence) -> int:
    """Tokens that the sequence may hold."""
    return min(trial.strategy.longest, sequence.limit)


def actor(seq: int, ids: list[int], limit: int) -> Sequence:
    return Sequence(seq, ids, len(ids), len(ids), limit, limit)


def newcomer(trial: Trial, seq: int) -> Sequence:
    """One of a token; often it begins like somebody before."""
    ids, space = trial.rng.choice(trial.told.prefixes or [([1], 0)])
    made = actor(seq, (ids or [1])[: trial.rng.randint(1, max(1, trial.strategy.longest - 1))], trial.strategy.longest)
    return Sequence(seq, made.ids, made.known, made.prompt, made.limit, made.known, space)


def forked(trial: Trial, seq: int, parent: Sequence | None = None) -> bool:
    """Whether somebody, or the parent, has a fork now."""
    able = [sequence for sequence in trial.running.values() if sequence.done]
    if not able:
        return False
    parent = parent or trial.rng.choice(able)
    length = parent.done if trial.windowed or trial.rng.random() < 0.7 else trial.rng.randint(1, parent.done)
    child = actor(seq, parent.ids[:length], parent.limit)
    child.space, child.origin = parent.space, parent.origin
    child.rechain(0)
    return trial.fork(parent, child)


def rise(trial: Trial, sequence: Sequence) -> None:
    """Alone, it computes all that it has; it cannot be refused."""
    while sequence.done < len(sequence.ids):
        step = trial.strategy.memory.chunk if sequence.done < sequence.prompt else 1
        if not compute(trial, sequence, min(sequence.done + step, len(sequence.ids))):
            text = f"sequence {sequence.seq} is alone and may not grow from {sequence.done} tokens"
            raise RuleError("longest", f"{text}; longest = {trial.strategy.longest}")
    checks.everything(trial)


def compute(trial: Trial, sequence: Sequence, stop: int) -> bool:
    """Ask for room up to `stop`, and fill all that was asked for, a chunk at a time; whether it was granted."""
    if stop > sequence.room and not trial.extend(sequence, stop):
        return False
    trial.drain()
    trial.apply()
    sequence.lengthen([trial.rng.randint(1, 2) for _ in range(stop - len(sequence.ids))])
    while sequence.done < stop:
        trial.issue([(sequence, min(stop, sequence.done + trial.strategy.memory.chunk))])
        trial.complete()
    return True
