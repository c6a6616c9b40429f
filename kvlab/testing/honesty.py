"""What a strategy claims, tried out on a copy of it: costly, so a few times in a life."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Arrival, Strategy
from kvlab.testing.gather import gather_from
from kvlab.testing.places import first_live
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import NEW, Sequence, read_only
from kvlab.testing.snapshot import Snapshot, size

if TYPE_CHECKING:
    from kvlab.testing.trial import Trial


def plain(seq: int, length: int, limit: int | None = None) -> Arrival:
    """An arrival that can hit nothing."""
    return Arrival(seq, length, length, limit or length, limit or length)


def strange(seq: int, length: int) -> Arrival:
    """An arrival that hits nothing, though it has ids."""
    return Arrival(seq, length, length, length, length, read_only([NEW] * length))


def largest_is_exact(trial: Trial) -> None:
    """`largest` tokens are admitted whole now, one more token is not; none where no seat is left."""
    strategy = trial.strategy
    largest, longest = strategy.usage().largest, strategy.longest
    now, kind = Snapshot(strategy), trial.rng.choice((plain, strange))
    for length, fits in ((largest, True), (largest + 1, False)):
        if not 1 <= length <= longest:
            continue
        granted = now.copy().admit(kind(NEW, length), length) is not None
        if granted != fits:
            text = f"usage().largest = {largest}, but {length} tokens are {'' if granted else 'not '}admitted"
            said, asked = "is not" if fits else "is", f"admit({kind.__name__}({NEW}, {length}), {length})"
            raise RuleError("largest", text, f"clone(strategy).{asked} {said} None")


def longest_is_reached(strategy: Strategy, arrival: Arrival | None = None) -> None:
    """A sequence alone, growing by one, reaches `longest`. `strategy`: a copy on which nothing runs.

    It begins with one token, or with the first chunk of `arrival`.
    """
    longest = strategy.longest
    if longest < 1:
        return
    strategy.drain()
    arrival = arrival or plain(NEW, 1, longest)
    hit, room = strategy.admit(arrival, strategy.memory.chunk) or (0, None)
    for length in range(min(hit + strategy.memory.chunk, arrival.length), longest):
        if room is None:
            break
        strategy.drain()
        if length + 1 > room:
            wrote(strategy, NEW, length, arrival.ids)
            room = strategy.extend(NEW, length, length + 1)
    if room is None or room < longest:
        reached = "it is not admitted" if room is None and NEW not in strategy.table.row else "it is refused on the way"
        who = f"a sequence that is alone, hits {hit} tokens and grows by one"
        raise RuleError("longest", f"longest = {longest}, but of {who} {reached}")


def wrote(strategy: Strategy, seq: int, length: int, ids: NDArray[np.int32] | None) -> None:
    """Tell it, as an engine does before each extend; ids beyond those that are known are 1."""
    if type(strategy).wrote is not Strategy.wrote:
        more = length - (0 if ids is None else len(ids))
        strategy.wrote(seq, length, ids if ids is None else read_only([*ids.tolist(), *[1] * more])[:length])


def emptied(trial: Trial) -> Strategy:
    """A copy on which every sequence has been released."""
    copied = trial.now().copy()
    for seq in list(trial.running):
        copied.release(seq)
    copied.drain()
    return copied


def returns_is_exact(trial: Trial) -> None:
    """`returns` says what release gives back, in whole tokens."""
    sequence = trial.rng.choice(list(trial.running.values())) if trial.running else None
    if sequence is None or (said := trial.strategy.returns(sequence.seq)) is None:
        return
    copied, size = trial.now().copy(), trial.strategy.memory.token_bytes
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
            group = trial.rng.randrange(len(strategy.groups))
            start = trial.rng.randint(first_live(strategy, group, sequence.done), sequence.done - 1)
            args = ([sequence.seq], [start], [sequence.done], strategy.block_size)
            said = strategy.slots(sequence.seq, group, start, sequence.done)
            if not np.array_equal(said, gather_from(strategy.tables[group], *args)):
                raise RuleError("slots", f"slots of sequence {sequence.seq} says {said}, which its table does not")


def cache_is_true(trial: Trial, told: list[tuple[list[int], int]] | None = None) -> None:
    """Whoever comes with a prefix that was told as written gets what lookup promises, and finds it there."""
    strategy, told = trial.strategy, told or trial.told.prefixes
    if not trial.finds or not told or trial.flight or len(trial.running) >= strategy.memory.max_seqs:
        return
    guest = told_before(trial, told, 1)
    if not guest.known:
        return
    trial.seen["cache probed"] += 1
    trial.probe(guest)


def told_before(trial: Trial, told: list[tuple[list[int], int]], more: int) -> Sequence:
    """One that begins with a prefix that was told as written, or with a part of it, and has so many tokens more."""
    ids, space = trial.rng.choice(told)
    longest, tail = trial.strategy.longest, [trial.rng.choice(ids or [1])] * more
    if more > 1:
        ids = ids[: trial.rng.randint(0, len(ids))]
    guest = Sequence(NEW, [*ids, *tail][:longest], 0, 0, longest, longest, space)
    guest.known = guest.prompt = len(guest.ids)
    return guest


def nobody_waits_for_ever(trial: Trial) -> None:
    """Alone, whoever is no longer than `longest` is admitted, whatever of it is cached, and reaches it."""
    longest = trial.strategy.longest
    if trial.told.prefixes and longest >= 1:
        longest_is_reached(
            emptied(trial), told_before(trial, trial.told.prefixes, trial.rng.choice((longest, 3))).arrival()
        )


def last_one_reaches_longest(trial: Trial) -> None:
    """When all others have left, the one that stays reaches `longest`, or its limit, from wherever it lies."""
    able = [sequence for sequence in trial.running.values() if sequence.issued]
    if not able:
        return
    last, copied = trial.rng.choice(able), trial.now().copy()
    longest = min(trial.strategy.longest, last.limit)  # a row of its limit may be all that it was given
    for seq in list(trial.running):
        if seq != last.seq:
            copied.release(seq)
    room: int | None = 0
    for length in range(last.issued, longest):
        copied.drain()
        if room is not None and length + 1 > room:
            wrote(copied, last.seq, length, None if last.origin is not None else read_only(last.ids))
            room = copied.extend(last.seq, length, length + 1)
        if room is None:
            text = f"sequence {last.seq}, the last one, is refused at {length} tokens"
            raise RuleError("longest", f"longest = {longest}, but {text}")


def fork_needs_no_more(trial: Trial) -> None:
    """Where an arrival of a fork's length is admitted, the fork is too."""
    able = [sequence for sequence in trial.running.values() if sequence.done and not sequence.in_flight]
    if not able or len(trial.running) >= trial.strategy.memory.max_seqs:
        return
    parent, now = trial.rng.choice(able), trial.now()
    child = plain(NEW, parent.done if trial.windowed else trial.rng.randint(1, parent.done))
    if now.copy().admit(child, child.length) is None or now.copy().fork(parent.seq, child) is not None:
        return
    text = f"a fork of sequence {parent.seq} with {child.length} tokens is refused; an arrival of as many is admitted"
    raise RuleError("fork", text, f"clone(strategy).fork({parent.seq}, plain({NEW}, {child.length})) is not None")


def clearing_drops_the_cache(strategy: Strategy) -> None:
    """After clear() nothing is cached. `strategy` is changed."""
    strategy.clear()
    usage = strategy.usage()
    if usage.cached:
        raise RuleError(
            "clear", f"after clear() {usage.cached} bytes are cached: {usage}", "strategy.usage().cached == 0"
        )


def nothing_piles_up(strategy: Strategy, before: int) -> None:
    """Empty and cleared, it keeps about as many objects as at the start, however long it lived."""
    now, spare = size(strategy), 100 + strategy.pools[0].slots
    if now > before + spare:
        text = f"nothing runs and nothing is cached, but the strategy consists of {now} objects; at first of {before}"
        raise RuleError("nothing piles up", text)
