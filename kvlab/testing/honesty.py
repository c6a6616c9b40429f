"""What a strategy claims, tried out on a copy of it: costly, so a few times in a life."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvlab.strategy import Arrival, Strategy
from kvlab.testing.gather import gather_from
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import Sequence, read_only
from kvlab.testing.snapshot import Snapshot, clone

if TYPE_CHECKING:
    from kvlab.testing.trial import Trial

NEW = 10**6  # the first of ids that no life reaches


def plain(seq: int, length: int, limit: int | None = None) -> Arrival:
    """An arrival that can hit nothing."""
    return Arrival(seq, length, length, limit or length, limit or length)


def largest_is_exact(trial: Trial) -> None:
    """`largest` tokens are admitted whole now, one more token is not."""
    strategy = trial.strategy
    if len(trial.running) >= strategy.memory.max_seqs:
        return
    largest, longest = strategy.usage().largest, strategy.longest
    now = Snapshot(strategy)
    for length, fits in ((largest, True), (largest + 1, False)):
        if not 1 <= length <= longest:
            continue
        granted = now.copy().admit(plain(NEW, length), length) is not None
        if granted != fits:
            text = (
                f"usage().largest = {largest}, but an arrival of {length} tokens is {'' if granted else 'not '}admitted"
            )
            said = "is not" if fits else "is"
            raise RuleError("largest", text, f"clone(strategy).admit(plain({NEW}, {length}), {length}) {said} None")


def longest_is_reached(strategy: Strategy) -> None:
    """A sequence alone, growing by one, reaches `longest`. `strategy`: a copy on which nothing runs."""
    longest = strategy.longest
    if longest < 1:
        return
    strategy.drain()
    room = None
    if (grant := strategy.admit(plain(NEW, 1, longest), 1)) is not None:
        room = grant.room
    for length in range(1, longest):
        if room is None:
            break
        strategy.drain()
        if length + 1 > room:
            room = strategy.extend(NEW, length, length + 1)
    if room is None or room < longest:
        reached = "it is not admitted" if room is None and NEW not in strategy.table.row else "it is refused on the way"
        raise RuleError("longest", f"longest = {longest}, but of a sequence that is alone and grows by one {reached}")


def emptied(trial: Trial) -> Strategy:
    """A copy on which every sequence has been released."""
    copied = clone(trial.strategy)
    for seq in list(trial.running):
        copied.release(seq)
    copied.drain()
    return copied


def unknown_ids_are_errors(trial: Trial) -> None:
    """extend, release, fork (and what else is there) of an unknown sequence raise KeyError; so does a repeated id."""
    strategy, now = trial.strategy, Snapshot(trial.strategy)
    unknown: list[tuple[str, tuple[Any, ...]]] = [
        ("extend", (NEW, 1, 2)),
        ("release", (NEW,)),
        ("fork", (NEW, plain(NEW + 1, 1))),
    ]
    if type(strategy).truncate is not Strategy.truncate:
        unknown.append(("truncate", (NEW, 1)))
    if type(strategy).wrote is not Strategy.wrote:
        unknown.append(("wrote", (NEW, 1, read_only([1]))))
    for name, args in unknown:
        must_be_key_error(now.copy(), name, args, "an unknown sequence")
    if trial.running and now.copy().admit(plain(NEW, 1), 1) is not None:
        seq = next(iter(trial.running))
        must_be_key_error(now.copy(), "admit", (plain(seq, 1), 1), f"sequence {seq}, which runs")
        copied = now.copy()
        copied.release(seq)
        must_be_key_error(copied, "release", (seq,), f"sequence {seq} a second time", before=f"release({seq})")


def must_be_key_error(strategy: Strategy, name: str, args: tuple[Any, ...], whom: str, before: str = "") -> None:
    try:
        answer = getattr(strategy, name)(*args)
    except KeyError:
        return
    if name == "fork" and answer is None:
        return  # refused for another reason before anything was looked up
    raise RuleError("unknown ids", f"{name} of {whom} returns {answer} and raises no KeyError")


def extend_all_is_the_loop(trial: Trial) -> None:
    """extend_all answers as extend one by one until one is refused, and leaves the same behind."""
    if not hasattr(trial.strategy, "extend_all") or not trial.running:
        return
    now, limit = Snapshot(trial.strategy), trial.strategy.memory.max_len
    asking = [s for s in trial.running.values() if s.issued and s.issued < min(limit, s.limit)]
    trial.rng.shuffle(asking)
    seqs, lengths = [s.seq for s in asking], [s.issued for s in asking]
    uptos = [min(s.issued + trial.rng.choice((1, 1, 1, 3)), limit, s.limit) for s in asking]
    one, all_at_once, rooms = now.copy(), now.copy(), []
    for args in zip(seqs, lengths, uptos, strict=True):
        if (room := one.extend(*args)) is None:
            break
        rooms.append(room)
    said = all_at_once.extend_all(seqs, lengths, uptos)
    text = f"of sequences {seqs} with {lengths} to {uptos}"
    if list(said) != rooms:
        raise RuleError("extend_all", f"{text} answers {said}, extend one by one {rooms}")
    if changed := Snapshot(one).difference(all_at_once):
        raise RuleError("extend_all", f"{text} leaves another state than extend one by one: strategy{changed}")


def returns_is_exact(trial: Trial) -> None:
    """`returns` says what release gives back, in whole tokens."""
    sequence = trial.rng.choice(list(trial.running.values())) if trial.running else None
    if sequence is None or (said := trial.strategy.returns(sequence.seq)) is None:
        return
    copied, size = clone(trial.strategy), trial.strategy.memory.token_bytes
    before = sum(copied.usage()[1:3])
    copied.release(sequence.seq)
    copied.drain()
    back = sum(copied.usage()[1:3]) - before
    if not back - size < said * size <= back:
        raise RuleError(
            "returns", f"release of sequence {sequence.seq} gives {back} bytes back; returns says {said} tokens"
        )


def slots_agree(trial: Trial) -> None:
    """Strategy.slots says the same as the tables."""
    strategy = trial.strategy
    for sequence in trial.running.values():
        if sequence.done:
            start = trial.rng.randrange(sequence.done)
            args = ([sequence.seq], [start], [sequence.done], strategy.block_size)
            said = strategy.slots(sequence.seq, 0, start, sequence.done)
            if not np.array_equal(said, gather_from(strategy.table, *args)):
                raise RuleError("slots", f"slots of sequence {sequence.seq} says {said}, which its table does not")


def cache_is_true(trial: Trial) -> None:
    """Whoever comes with a prefix that was told as written gets what lookup promises, and finds it there."""
    strategy = trial.strategy
    if not trial.told_ids or trial.flight or len(trial.running) >= strategy.memory.max_seqs:
        return
    ids, space = trial.rng.choice(trial.told_ids)
    tail = [trial.rng.choice(ids or [1])]
    guest = Sequence(NEW, [*ids, *tail][: strategy.longest], 0, 0, strategy.longest, strategy.longest, space)
    guest.known = guest.prompt = len(guest.ids)
    if not guest.known:
        return
    trial.seen["cache probed"] += 1
    trial.probe(guest)


def clearing_drops_the_cache(strategy: Strategy) -> None:
    """After clear() nothing is cached. `strategy` is changed."""
    strategy.clear()
    usage = strategy.usage()
    if usage.cached:
        raise RuleError(
            "clear", f"after clear() {usage.cached} bytes are cached: {usage}", "strategy.usage().cached == 0"
        )


CLAIMS: tuple[Callable[[Trial], None], ...] = (
    largest_is_exact,
    unknown_ids_are_errors,
    extend_all_is_the_loop,
    returns_is_exact,
    slots_agree,
    cache_is_true,
)
