"""page_aware: page groups empty one after another, those first that need least; beside a plain search for them."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from kvlab.eviction import LRU
from kvlab.page_aware import PageAware
from kvlab.strategies.prefix import Prefix
from kvlab.strategies.radix import Radix
from kvlab.strategy import Arrival, Memory


class Served:
    """What the order asks of a strategy."""

    def __init__(self, size=None):
        self.free, self.size = [], size

    def page_group(self, block):
        return None if self.size is None else block // self.size


def test_the_group_with_most_idle_goes_first_and_whole():
    eviction = PageAware(4)
    eviction.serve(Served())
    for key in (0, 4, 5, 8, 9, 10, 1):
        eviction.add(key)
    assert [eviction.pop() for _ in range(3)] == [8, 9, 10]
    eviction.add(6)  # now three of 4 .. 7
    assert [eviction.pop() for _ in range(5)] == [4, 5, 6, 0, 1]
    with pytest.raises(KeyError):
        eviction.pop()


def test_of_equal_groups_the_one_not_used_for_longest():
    eviction = PageAware(4)
    for key in (0, 4, 5, 1):
        eviction.add(key)
    assert eviction.pop() == 4


def test_free_neighbours_count_as_idle_ones_do():
    served = Served()
    eviction = PageAware(4)
    eviction.serve(served)
    for key in (0, 1, 8):
        eviction.add(key)
    served.free = [9, 10, 11]
    assert eviction.pop() == 8


@pytest.mark.parametrize("seed", range(6))
def test_pops_are_those_of_a_plain_search(seed):
    rng, served = random.Random(seed), Served(4)
    eviction, idle, used, time, begun = PageAware(), {}, {}, 0, None
    eviction.serve(served)
    for _ in range(3000):
        key = rng.randrange(60)
        act = rng.random()
        if key in idle and act < 0.4:
            eviction.remove(key)
            del idle[key]
        elif key in idle and act < 0.45:
            eviction.forget(key)
            del idle[key]
        elif key not in idle and act < 0.6:
            time += 1
            eviction.add(key)
            idle[key] = used[key // 4] = time
            served.free = [block for block in served.free if block != key]
        elif act < 0.65:
            served.free = [block for block in rng.sample(range(60), 10) if block not in idle]
        elif idle and act < 0.9:
            if not any(other // 4 == begun for other in idle):
                begun = max(
                    {other // 4 for other in idle}, key=lambda group: (unowned(group, idle, served.free), -used[group])
                )
            expected = min((other for other in idle if other // 4 == begun), key=idle.get)
            assert eviction.pop() == expected
            del idle[expected]
        assert len(eviction) == len(idle)
        assert (key in eviction) == (key in idle)
        assert len(eviction.heap) < 400


def unowned(group, idle, free):
    """Blocks of a page group that are idle or free."""
    return sum(block // 4 == group for block in [*idle, *free])


def memory(page_group_bytes):
    return Memory(16 * 16, token_bytes=4, max_len=64, max_seqs=17, chunk=64, page_group_bytes=page_group_bytes)


def admit(strategy, seq, ids):
    ids = np.array(ids, np.int32)
    assert strategy.admit(Arrival(seq, len(ids), len(ids), 64, 64, ids), len(ids))
    strategy.drain()
    strategy.wrote(seq, len(ids), ids)


@pytest.mark.parametrize("kind", [Prefix, Radix])
@pytest.mark.parametrize(
    ("eviction", "taken"),
    [(LRU(), {0, 4, 8}), (PageAware(), {4, 5, 6}), (PageAware(4), {4, 5, 6}), (PageAware(8), {0, 4, 5})],
    ids=["lru", "page_aware", "page_aware 4", "page_aware 8"],
)
def test_a_strategy_s_page_groups_empty_whole_where_lru_takes_a_block_of_each(kind, eviction, taken):
    """Sixteen blocks in four page groups; a block or two of each is idle, of 4 .. 7 three are."""
    strategy = kind(memory(page_group_bytes=64), 4, copy.deepcopy(eviction))
    for seq in range(16):
        admit(strategy, seq, range(100 * seq, 100 * seq + 4))
    for seq in (0, 4, 8, 12, 5, 6, 9):
        strategy.release(seq)
    admit(strategy, 99, range(5000, 5012))
    assert set(strategy.table[99].tolist()) == taken


@pytest.mark.parametrize("blocks", [0, 1.5, True, "8"])
def test_page_groups_of_no_size(blocks):
    with pytest.raises(ValueError, match=f"blocks={blocks}: allowed is a whole number of blocks"):
        PageAware(blocks)


def test_memory_without_page_groups_needs_their_size_given():
    with pytest.raises(ValueError, match=r"eviction=page_aware: this strategy's memory has no page groups; give"):
        Prefix(memory(page_group_bytes=0), 4, PageAware())
