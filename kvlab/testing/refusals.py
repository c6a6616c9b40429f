"""What must be refused, what must not, and that a refusal changes nothing; tried out on copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvlab.strategy import Strategy
from kvlab.testing.honesty import plain
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import NEW, read_only
from kvlab.testing.snapshot import Snapshot

if TYPE_CHECKING:
    from kvlab.testing.trial import Trial


def unknown_ids_are_errors(trial: Trial) -> None:
    """extend, release, fork (and what else is there) of an unknown sequence raise KeyError; so does a repeated id."""
    now = trial.now()
    for name, args in calls_of_nobody(trial.strategy):
        must_be_key_error(now, name, args, "an unknown sequence")
    must_be_key_error(crowded(trial), "extend", (NEW, 1, trial.strategy.memory.max_len), "an unknown sequence")
    if trial.swapped:
        forgotten_ids_are_errors(trial, now)
    if trial.running:
        repeated_ids_are_errors(trial, now)


def calls_of_nobody(strategy: Strategy) -> list[tuple[str, tuple[Any, ...]]]:
    """Methods that the strategy has, with arguments that name a sequence which it never saw."""
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("extend", (NEW, 1, 2)),
        ("release", (NEW,)),
        ("fork", (NEW, plain(NEW + 1, 1))),
        ("swap_out", (NEW, 1)),
        ("swap_in", (plain(NEW, 1),)),
        ("forget", (NEW,)),
    ]
    if type(strategy).truncate is not Strategy.truncate:
        calls.append(("truncate", (NEW, 1)))
    if type(strategy).wrote is not Strategy.wrote:
        calls.append(("wrote", (NEW, 1, read_only([1]))))
    return calls


def forgotten_ids_are_errors(trial: Trial, now: Snapshot) -> None:
    seq, copied = trial.rng.choice(list(trial.swapped)), now.copy()
    copied.forget(seq)
    for name, args in (("forget", (seq,)), ("swap_in", (plain(seq, 1),))):
        must_be_key_error(Snapshot(copied), name, args, f"sequence {seq}, which was forgotten")


def repeated_ids_are_errors(trial: Trial, now: Snapshot) -> None:
    seq, parent = (trial.rng.choice(list(trial.running)) for _ in range(2))
    must_be_key_error(now, "admit", (plain(seq, 1), 1), f"sequence {seq}, which runs")
    if trial.running[parent].done:
        must_be_key_error(now, "fork", (parent, plain(seq, 1)), f"sequence {seq}, which runs")
    copied = now.copy()
    copied.release(seq)
    must_be_key_error(Snapshot(copied), "release", (seq,), f"sequence {seq} a second time")


def crowded(trial: Trial) -> Snapshot:
    """The strategy with as long a guest as it takes: whoever asks now would be refused, if he were known."""
    copied, memory = trial.now().copy(), trial.strategy.memory
    most = min(copied.usage().largest, memory.max_len)
    if most > 1 and len(trial.running) < memory.max_seqs:
        copied.admit(plain(NEW + 1, most), most)
    return Snapshot(copied)


def must_be_key_error(now: Snapshot, name: str, args: tuple[Any, ...], whom: str) -> None:
    """Who may be refused changes nothing then. admit and fork may refuse before they look anything up."""
    strategy = now.copy()
    try:
        answer = getattr(strategy, name)(*args)
    except KeyError:
        if name in ("admit", "extend", "fork", "swap_out", "swap_in") and (changed := now.difference(strategy)):
            raise RuleError("unknown ids", f"{name} of {whom} raises KeyError, but strategy{changed}") from None
        return
    if name not in ("admit", "fork") or answer is not None:
        raise RuleError("unknown ids", f"{name} of {whom} returns {answer} and raises no KeyError")


def room_is_a_promise(trial: Trial) -> None:
    """Whoever asks for what he has keeps his room; nothing is taken and nothing moves."""
    strategy = trial.now().copy()
    strategy.drain()
    for sequence in trial.running.values():
        room = min(sequence.room, strategy.memory.max_len)
        if room > sequence.issued:
            before, upto = strategy.usage(), trial.rng.randint(sequence.issued + 1, room)
            answer = strategy.extend(sequence.seq, sequence.issued, upto)
            after, moves = strategy.usage(), strategy.drain()
            if answer is None or answer < sequence.room or moves or after != before:
                text = f"sequence {sequence.seq} has a room of {sequence.room}, asks for {upto}, is answered {answer}"
                raise RuleError("room", f"{text}; moves {moves}; {before} becomes {after}")


def nobody_outgrows_max_len(trial: Trial) -> None:
    """Growth beyond max_len is refused, and changes nothing."""
    able = [sequence for sequence in trial.running.values() if sequence.issued]
    if able:
        sequence, longest = trial.rng.choice(able), trial.strategy.memory.max_len
        for more in (1, trial.rng.randint(2, 20)):
            args = sequence.seq, sequence.issued, longest + more
            strategy = trial.now().copy()
            must_be_clean(strategy, "extend", args)
            if (answer := strategy.extend(*args)) is not None:
                raise RuleError("max_len", f"max_len = {longest}, but extend{args} answers {answer}")


def tight_pools_refuse_cleanly(trial: Trial) -> None:
    """With next to nothing free, growth that is refused changes nothing, that of a fresh fork least of all."""
    strategy, rng, seats = trial.now().copy(), trial.rng, trial.strategy.memory.max_seqs - len(trial.running)
    lengths = {sequence.seq: sequence.issued for sequence in trial.running.values()}
    able = [sequence for sequence in trial.running.values() if sequence.done and not sequence.in_flight]
    if able and seats > 1:
        parent = rng.choice(able)
        ahead = min(parent.issued + rng.randint(0, 12), strategy.longest, parent.limit)
        if ahead > parent.issued:
            strategy.extend(parent.seq, parent.issued, ahead)
        if strategy.fork(parent.seq, plain(NEW, parent.done)) is not None:
            lengths = {NEW: parent.done, **lengths}
    for seq in range(NEW + 1, NEW + seats):
        length = strategy.usage().largest - rng.choice((0, 0, rng.randint(0, 8)))
        if length < 1 or strategy.admit(plain(seq, length), length) is None:
            break
    for seq, length in lengths.items():
        upto = min(length + rng.randint(1, 4), strategy.longest)
        if upto > length:
            must_be_clean(strategy, "extend", (seq, length, upto))


def a_full_host_refuses_cleanly(trial: Trial) -> None:
    """Everybody is swapped out until the host is full, and in until the pool is: who is refused changes nothing."""
    strategy, rng = trial.now().copy(), trial.rng
    able = [sequence for sequence in trial.running.values() if sequence.done and not sequence.in_flight]
    for sequence in rng.sample(able, len(able)):
        must_be_clean(strategy, "swap_out", (sequence.seq, sequence.done))
    waiting = [sequence.arrival() for sequence in trial.swapped.values()]
    for arrival in rng.sample(waiting, len(waiting)):
        must_be_clean(strategy, "swap_in", (arrival,))


def must_be_clean(strategy: Strategy, name: str, args: tuple[Any, ...]) -> None:
    before = Snapshot(strategy)
    if getattr(strategy, name)(*args) in (None, False) and (changed := before.difference(strategy)):
        raise RuleError("refusal", f"where there is next to no room {name}{args} is refused, but strategy{changed}")
