"""A refusal changes nothing: not the free lists, not their order, not a table."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from kvlab.strategies.contiguous import Contiguous
from kvlab.strategy import Arrival, Strategy


def state(strategy: Strategy) -> object:
    """Everything the strategy remembers, comparable."""
    return freeze(copy.deepcopy(vars(strategy)))


def freeze(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return [(key, freeze(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [freeze(item) for item in value]
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, int | float | str | bytes | type(None)):
        return value
    return freeze(vars(value) if hasattr(value, "__dict__") else {k: getattr(value, k) for k in value.__slots__})


@pytest.mark.parametrize("seed", range(6))
def test_refusals_change_nothing_and_the_books_add_up(make_strategy, memory, seed):
    strategy = make_strategy(memory(150, group_tokens=random.Random(seed).choice([2.5, 8])))
    rng, live, refused = random.Random(seed), {}, 0
    capacity = sum(strategy.usage()[:3])
    for step in range(300):
        before = state(strategy)
        if live and rng.random() < 0.3:
            seq = rng.choice(list(live))
            strategy.release(seq)
            del live[seq]
        elif live and rng.random() < 0.6:
            seq = rng.choice(list(live))
            upto = min(live[seq] + rng.randint(1, 12), 64)
            room = strategy.extend(seq, live[seq], upto)
            if room is None:
                refused += 1
                assert state(strategy) == before
            else:
                assert room >= upto
                live[seq] = upto
        elif len(live) < 16:
            length, leave = rng.randint(1, 40), rng.choice([0, 0, 5])
            largest = strategy.usage().largest
            grant = strategy.admit(Arrival(step, length, length, 64, 64), length, leave)
            if leave == 0:
                assert (grant is not None) == (length <= largest), "largest must be what admit would take"
            if grant is None:
                refused += 1
                assert state(strategy) == before
            else:
                live[step] = length
        usage = strategy.usage()
        assert sum(usage[:3]) == capacity
    assert refused > 4
    for seq in live:
        strategy.release(seq)
    assert strategy.usage().held == 0


def test_a_fork_copies_into_room_of_its_own(memory):
    """Where the strategy has no fork of its own."""
    strategy = Contiguous(memory(1000))
    strategy.admit(Arrival(0, 21, 21, 64, 64), 21)
    strategy.drain()
    grant = strategy.fork(0, Arrival(1, 19, 19, 64, 64))
    assert grant.hit == 19 <= grant.room
    copies = [move for move in strategy.drain() if type(move).__name__ == "Copy"]
    moved = {source + i: target + i for source, target, tokens, _ in copies for i in range(tokens)}
    parent, child = (strategy.slots(seq, 0, 0, 19).tolist() for seq in (0, 1))
    assert moved == dict(zip(parent, child, strict=True))
