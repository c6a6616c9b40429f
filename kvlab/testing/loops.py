"""What a strategy does for many at once must be what it does for one after another, and leave the same behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvlab.strategy import Arrivals, Strategy
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import NEW, read_only
from kvlab.testing.snapshot import Snapshot

if TYPE_CHECKING:
    from kvlab.testing.trial import Trial


def extend_all_is_the_loop(trial: Trial) -> None:
    """extend_all answers as extend one by one until one is refused."""
    if not hasattr(trial.strategy, "extend_all") or not trial.running:
        return
    limit = trial.strategy.memory.max_len
    asking = [s for s in trial.running.values() if s.issued and s.issued < min(limit, s.limit)]
    trial.rng.shuffle(asking)
    decoding = [s for s in asking if s.issued == s.room]  # as in a step that only decodes
    for some, steps in ((decoding, (1,)), (asking, trial.rng.choice(((1,), (2,), (1, 1, 1, 3))))):
        seqs, lengths = [s.seq for s in some], [s.issued for s in some]
        uptos = [min(s.issued + trial.rng.choice(steps), limit, s.limit) for s in some]
        columns = np.array(lengths, np.int64), np.array(uptos, np.int64)
        _compare(trial, "extend_all", (seqs, *columns), f"of sequences {seqs} with {lengths} to {uptos}")


def admit_all_is_the_loop(trial: Trial) -> None:
    """admit_all answers as admit one by one until one is refused, or too long for what usage says."""
    if not hasattr(trial.strategy, "admit_all"):
        return
    most, count = max(1, trial.strategy.longest), trial.rng.randint(1, trial.strategy.memory.max_seqs + 1)
    lengths = [trial.rng.randint(1, trial.rng.choice((most, min(most, 8)))) for _ in range(count)]
    length_N = np.array(lengths, np.int64)
    arrivals = Arrivals(NEW + np.arange(count), length_N, length_N, np.maximum(length_N, most), length_N)
    beyond = trial.rng.choice((0, 1, 1, 5))
    _compare(trial, "admit_all", (arrivals, beyond), f"of arrivals with {lengths} tokens and {beyond} beyond")


def release_all_is_the_loop(trial: Trial) -> None:
    """release_all gives back what release one by one gives back."""
    if not hasattr(trial.strategy, "release_all") or not trial.running:
        return
    seqs = trial.rng.sample(list(trial.running), trial.rng.randint(1, len(trial.running)))
    _compare(trial, "release_all", (seqs,), f"of sequences {seqs}")


def wrote_all_is_the_loop(trial: Trial) -> None:
    """wrote_all publishes what wrote one by one publishes."""
    if type(trial.strategy).wrote is Strategy.wrote or not trial.running:
        return
    told = trial.rng.sample(list(trial.running.values()), trial.rng.randint(1, len(trial.running)))
    decoding = [s for s in told if s.told]  # as in a step that only decodes
    size = trial.strategy.block_size or 1
    for some, steps in ((decoding, (0, size)), (told, (0, 1, size, 3 * size))):
        seqs, lengths = [s.seq for s in some], [min(s.done, s.told + trial.rng.choice(steps)) for s in some]
        with_ids = all(s.origin is None for s in some)
        ids = [read_only(s.ids[:length]) for s, length in zip(some, lengths, strict=True)] if with_ids else None
        text = f"of sequences {seqs} with {lengths} tokens"
        _compare(trial, "wrote_all", (seqs, np.array(lengths, np.int64), ids), text)


def _compare(trial: Trial, name: str, args: tuple[Any, ...], text: str) -> None:
    now = trial.now()
    one, all_at_once = now.copy(), now.copy()
    expected, said = vars(Strategy)[name](one, *args), getattr(all_at_once, name)(*args)
    if said != expected:
        raise RuleError(name, f"{name} {text} answers {said}, one by one {expected}")
    if changed := Snapshot(one).difference(all_at_once):
        raise RuleError(name, f"{name} {text} leaves another state than one by one: strategy{changed}")
