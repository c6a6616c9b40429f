"""Eviction orders against the plainest thing that could be right: sort all keys at each pop."""

from __future__ import annotations

import random

import pytest

from kvlab.eviction import FIFO, LFU, LRU, Priority
from kvlab.page_aware import PageAware


class Sorted:
    """Keys with when they came, when they were added last, how often, and their highest priority."""

    def __init__(self, rank):
        self.rank, self.known, self.there, self.time = rank, {}, set(), 0

    def add(self, key, priority):
        self.time += 1
        first, _, uses, highest = self.known.get(key, (self.time, 0, 0, priority))
        self.known[key] = first, self.time, uses + 1, max(highest, priority)
        self.there.add(key)

    def remove(self, key):
        self.there.remove(key)

    def forget(self, key):
        self.known.pop(key, None)
        self.there.discard(key)

    def pop(self):
        key = min(self.there, key=lambda key: self.rank(*self.known[key]))
        self.forget(key)
        return key


RANKS = {
    LRU: lambda first, last, uses, priority: last,
    LFU: lambda first, last, uses, priority: (uses, last),
    FIFO: lambda first, last, uses, priority: first,
    Priority: lambda first, last, uses, priority: (priority, last),
}


@pytest.mark.parametrize("kind", RANKS)
@pytest.mark.parametrize("seed", range(5))
def test_keys_leave_in_order(kind, seed):
    real, plain, rng = kind(), Sorted(RANKS[kind]), random.Random(seed)
    for _ in range(2000):
        key = rng.randrange(40)
        if rng.random() < 0.1:
            real.forget(key)
            plain.forget(key)
        elif key in plain.there:
            real.remove(key)
            plain.remove(key)
        elif rng.random() < 0.8 or not plain.there:
            priority = rng.randrange(-2, 3)
            real.add(key, priority)
            plain.add(key, priority)
        else:
            assert real.pop() == plain.pop()
        assert len(real) == len(plain.there)
        assert (key in real) == (key in plain.there)


@pytest.mark.parametrize("kind", [*RANKS, lambda: PageAware(blocks=4)])
@pytest.mark.parametrize("seed", range(5))
def test_many_at_once_are_as_one_after_another(kind, seed):
    many, single, rng, there = kind(), kind(), random.Random(seed), set()
    for _ in range(300):
        some = rng.sample(range(60), rng.randrange(12))
        gone, new = [key for key in some if key in there], [key for key in some if key not in there]
        assert many.among(some) == gone
        if rng.random() < 0.5:
            priority = dict.fromkeys(new[::2], rng.randrange(1, 3))
            many.add_all(new, priority)
            for key in new:
                single.add(key, priority.get(key, 0))
            there.update(new)
        elif rng.random() < 0.7:
            many.remove_all(gone)
            for key in gone:
                single.remove(key)
            there.difference_update(gone)
        elif rng.random() < 0.5:
            many.forget_all(some)
            for key in some:
                single.forget(key)
            there.difference_update(gone)
        else:
            count = rng.randrange(len(there) + 1)
            popped = many.pop_all(count)
            assert popped == [single.pop() for _ in range(count)]
            there.difference_update(popped)
        assert len(many) == len(single) == len(there)


@pytest.mark.parametrize("kind", RANKS)
def test_nothing_to_evict_is_an_error(kind):
    eviction = kind()
    eviction.add(1)
    eviction.remove(1)
    with pytest.raises(KeyError):
        eviction.pop()
    with pytest.raises(KeyError):
        eviction.remove(1)


@pytest.mark.parametrize("kind", [LRU, LFU, FIFO, Priority])
def test_keys_that_come_and_go_do_not_pile_up(kind):
    eviction = kind()
    eviction.add(2)
    for _ in range(1000):
        eviction.add(1)
        eviction.remove(1)
    assert len(eviction.queue if kind is LRU else eviction.heap) < 40
    assert eviction.pop() == 2


LEAVE = {
    "pop": lambda eviction, key: eviction.pop(),
    "forget": lambda eviction, key: eviction.forget(key),
    "remove": lambda eviction, key: (eviction.remove(key), eviction.forget(key)),
}


@pytest.mark.parametrize("kind", [LRU, LFU, FIFO, Priority, lambda: PageAware(blocks=4)])
@pytest.mark.parametrize("leave", LEAVE)
def test_nothing_is_kept_of_keys_that_left(kind, leave):
    """Ranked orders tidied when keys came, never when they left: an empty cache kept up to twice its keys' entries."""
    eviction, rng = kind(), random.Random(leave)
    keys = rng.sample(range(1000), 1000)
    for key in keys:
        eviction.add(key, rng.randrange(3))
    for key in rng.sample(keys, 1000):
        LEAVE[leave](eviction, key)
    assert not len(eviction)
    kept = {name: value for name, value in vars(eviction).items() if hasattr(value, "__len__")}
    assert kept
    assert {name: len(value) for name, value in kept.items() if len(value) > 16} == {}
