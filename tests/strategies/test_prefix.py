"""The prefix cache: what hits, what does not, what becomes of equal blocks, and forks in the middle of one."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.strategies.places import Places
from kvlab.strategies.prefix import Prefix
from kvlab.strategy import Grant

TEN = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_what_a_sequence_wrote_is_found_by_the_next(bench):
    b = bench(Prefix, 10)
    assert b.start(0, TEN) == 0
    b.release(0)
    assert (b.blocks("cached"), b.blocks("free")) == (2, 8)
    assert b.strategy.lookup(b.arrival(1, TEN)) == 8
    assert b.admit(1, [*TEN[:6], 0, 0, 0, 0]) == Grant(4, 12)
    b.launch(1)
    assert b.start(2, TEN) == 8
    b.check()


@pytest.mark.parametrize(("length", "hit"), [(8, 4), (9, 8), (4, 0), (5, 4)])
def test_a_full_prompt_hit_leaves_a_token_to_compute(bench, length, hit):
    """A launch of no token crashed (nano-vllm #144); blocks are hit whole, so the last whole one is computed again."""
    b = bench(Prefix, 10)
    b.start(0, TEN[:length])
    assert b.start(1, TEN[:length]) == hit
    b.check()


def test_two_requests_with_one_prefix_in_one_step_do_not_hit_each_other(bench):
    """The second was given blocks whose keys and values were not computed yet (nano-vllm #208, vllm #5364)."""
    b = bench(Prefix, 10)
    assert b.admit(0, TEN) == b.admit(1, TEN) == Grant(0, 12)
    b.launch(0, 1)
    b.check()
    assert b.start(2, TEN) == 8


@pytest.mark.parametrize(("duplicates", "held", "copies"), [("keep", 6, 2), ("dedupe", 4, 1)])
def test_blocks_that_were_computed_twice_are_kept_or_merged(bench, duplicates, held, copies):
    b = bench(Prefix, 10, duplicates=duplicates)
    b.admit(0, TEN)
    b.admit(1, TEN)
    b.launch(0, 1)
    b.check()
    assert b.blocks("held") == held
    assert b.strategy.counts["duplicates"] == 8, "tokens"
    assert len({*b.strategy.table[0][:1].tolist(), *b.strategy.table[1][:1].tolist()}) == copies
    b.release(0, 1)
    assert b.blocks("cached") == held - 2
    assert b.start(2, TEN) == 8
    b.check()


def test_output_tokens_are_published_too(bench):
    """A sequence that comes back after preemption finds what it had said."""
    b = bench(Prefix, 10)
    b.start(0, TEN)
    b.grow(0, 11, 12, 13)
    b.launch(0)
    b.release(0)
    assert b.start(1, [*range(1, 14)]) == 12
    b.check()


def test_only_what_was_told_as_written_is_found(bench):
    b = bench(Prefix, 10)
    b.admit(0, TEN)
    b.launch(0, tell=False)
    assert b.strategy.lookup(b.arrival(1, TEN)) == 0
    b.strategy.wrote(0, 7, np.array(TEN[:7], np.int32))
    assert b.strategy.lookup(b.arrival(1, TEN)) == 4
    b.release(0)
    assert (b.blocks("cached"), b.blocks("free")) == (1, 9)


def test_equal_blocks_behind_different_ones_never_meet(bench):
    """Hashes of a block's own tokens alone gave false hits (LLMServingSim: 53 in 300 requests)."""
    b = bench(Prefix, 10)
    b.start(0, [1, 1, 1, 1, 5, 6, 7, 8, 0])
    b.start(1, [2, 2, 2, 2, 0])
    assert b.start(2, [2, 2, 2, 2, 5, 6, 7, 8, 0]) == 4
    assert b.start(3, [5, 6, 7, 8, 0]) == 0
    b.check()


def test_spaces_never_share(bench):
    b = bench(Prefix, 12)
    b.start(0, TEN, space=1)
    assert b.start(1, TEN) == 0
    assert b.start(2, TEN, space=11) == 0
    assert b.start(3, TEN, space=1) == 8
    b.check()


class OneBit:
    """A key with two possible hashes."""

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return hash(self.value) & 1

    def __eq__(self, other):
        return self.value == other.value


class OneBitPlaces(Places):
    def hashed(self, key):
        return OneBit(key)


def colliding(*args):
    made = Prefix(*args)
    made.places = OneBitPlaces(made.places.root, made.places.block_bytes)
    return made


def test_contents_with_one_hash_stay_apart(bench):
    """Predictable collisions of hashes let one user hit another's blocks (vllm #12621, #15297)."""
    b, rng = bench(colliding, 60), np.random.default_rng(0)
    prompts = [[*rng.integers(0, 2, 13).tolist()] for _ in range(10)]
    for seq, prompt in enumerate(prompts):
        known = {tuple(p[: n * 4]) for p in prompts[:seq] for n in (1, 2, 3)}
        hit = next(n for n in (12, 8, 4, 0) if not n or tuple(prompt[:n]) in known)
        assert b.start(seq, prompt) == hit
    b.check()


def test_a_fork_in_the_middle_of_a_published_block_copies_it_even_as_its_last_owner(bench):
    """The suffix was written into the shared prefix block (tt-xla #4190)."""
    b = bench(Prefix, 6)
    b.start(0, TEN[:8])
    b.fork(0, 1, 6)
    b.release(0)
    b.grow(1, 60, 61, 62)
    assert [move.tokens for move in b.strategy.moves] == [2]
    b.launch(1)
    b.check()
    assert b.start(2, TEN[:9]) == 8
    b.check()


def test_a_word_that_is_not_known_is_refused(bench):
    with pytest.raises(ValueError, match=r"duplicates=merge: allowed is keep, dedupe"):
        bench(Prefix, 4, duplicates="merge")
