"""`lost_to_alignment`: what a prompt could hit if blocks were shared in part, beside the plainest way to count it."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

from kvlab.strategies.prefix import Prefix
from kvlab.strategies.radix import Radix
from kvlab.strategy import Arrival, Memory

KINDS = {"prefix": Prefix, "dedupe": partial(Prefix, duplicates="dedupe"), "radix": Radix}
kinds = pytest.mark.parametrize("kind", KINDS)


class Served:
    """Prompts one at a time, and the beginnings that are stored whole blocks of."""

    def __init__(self, kind, blocks=200):
        memory = Memory(blocks * 4, token_bytes=1, max_len=64, max_seqs=4, chunk=64)
        self.strategy, self.seq = KINDS[kind](memory, 4), 0

    def lost(self, ids, space=0):
        """By this prompt alone."""
        before, self.seq = self.strategy.counts["lost_to_alignment"], self.seq + 1
        ids = np.array(ids, np.int32)
        assert self.strategy.admit(Arrival(self.seq, len(ids), len(ids), 64, 64, ids, space), len(ids))
        self.strategy.drain()
        self.strategy.wrote(self.seq, len(ids), ids)
        self.strategy.release(self.seq)
        return self.strategy.counts["lost_to_alignment"] - before


@kinds
def test_tokens_of_a_block_that_goes_on_in_another_way(kind):
    served = Served(kind)
    assert served.lost(range(12)) == 0
    assert served.lost([0, 1, 2, 3, 4, 5, 6, 99, 8]) == 3  # a block is hit, three tokens of the next are equal
    assert served.lost([0, 1, 9]) == 2  # not a block
    assert served.lost([0, 1, 2, 3, 4, 5, 6, 7, 70]) == 0  # two blocks are hit, nothing follows that is alike
    assert served.lost([0, 1, 2, 3, 4, 5, 6, 7]) == 3  # one token is left to compute, and takes its block along


@kinds
def test_what_another_space_stores_is_not_lost(kind):
    served = Served(kind)
    served.lost(range(12), space=1)
    assert served.lost([0, 1, 2, 99], space=2) == 0
    assert served.lost([0, 1, 2, 99], space=1) == 3


def test_a_hit_that_copies_a_part_loses_nothing():
    served = Served("radix")
    served.strategy.copies_partial = True
    served.lost(range(12))
    assert served.lost([0, 1, 2, 3, 4, 5, 6, 99, 8]) == 0


@kinds
@pytest.mark.parametrize("blocks", [200, 9])
def test_the_count_is_that_of_a_plain_search(kind, blocks):
    """Nine blocks evict; what is left in the cache is then asked of the strategy, prompt by prompt."""
    rng, served, told = random.Random(blocks), Served(kind, blocks), [[0] * 8]
    for _ in range(300):
        ids = rng.choice(told)[: rng.randint(0, 12)] + [rng.randrange(3) for _ in range(rng.randint(1, 9))]
        hit = served.strategy.lookup(Arrival(0, len(ids), len(ids), 64, 64, np.array(ids, np.int32)))
        stored = [prompt for prompt in told if cached(served.strategy, prompt) > hit and prompt[:hit] == ids[:hit]]
        expected = max((alike(prompt[hit : hit + 4], ids[hit:-1]) for prompt in stored), default=0)
        assert served.lost(ids) == expected
        told.append(ids)


def cached(strategy, prompt):
    """Tokens of the prompt that are stored in whole blocks; one more than it has, so that none is left out."""
    longer = np.array([*prompt, 77], np.int32)
    return strategy.lookup(Arrival(0, len(longer), len(longer), 64, 64, longer))


def alike(one, other):
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
