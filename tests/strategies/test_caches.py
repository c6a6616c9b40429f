"""What every cache does, by hashes or in a tree."""

from __future__ import annotations

import pytest

from kvlab.eviction import LFU, Priority
from kvlab.strategies.prefix import Prefix
from kvlab.strategies.radix import Radix

TEN = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.fixture(params=[Prefix, Radix])
def cache(request):
    return request.param


def test_lfu_and_priority_keep_what_is_used_often_or_matters(bench, cache):
    for eviction, options in ((LFU(), {}), (Priority(), {"priority": 5})):
        b = bench(cache, 4, eviction=eviction)
        for seq in (0, 1, 2):
            b.start(seq, [1] * 5, **options)
            b.release(seq)
        b.start(3, [2] * 5)
        b.release(3)
        b.start(4, [3] * 12)
        b.release(4)
        assert b.strategy.lookup(b.arrival(5, [1] * 5)) == 4, eviction


def test_a_double_release_is_an_error_and_changes_nothing(bench, cache):
    """Request and tree both freed a slot (sglang-jax #982, #1147)."""
    b = bench(cache, 4)
    b.start(0, TEN)
    b.release(0)
    with pytest.raises(KeyError):
        b.strategy.release(0)
    assert (b.blocks("cached"), b.blocks("free")) == (2, 2)
