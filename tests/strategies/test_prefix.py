"""The prefix cache: what hits, what does not, who is evicted, and what becomes of equal blocks."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.eviction import FIFO, LFU, Priority
from kvlab.strategies.places import NONE, SEVERAL, Places
from kvlab.strategies.prefix import Prefix
from kvlab.strategy import Grant
from kvlab.testing.snapshot import Snapshot

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


def test_the_tail_of_a_sequence_is_evicted_first(bench):
    b = bench(Prefix, 4)
    b.start(0, [*range(16)])
    b.release(0)
    b.start(1, [9] * 8)
    assert b.strategy.counts["evicted"] == 8
    b.release(1)
    assert b.strategy.lookup(b.arrival(2, [*range(16)])) == 8


def test_hits_are_pinned_before_anything_is_evicted_and_count_as_needed(bench):
    """An allocation evicted the idle blocks that it had just found (vllm #33775)."""
    b = bench(Prefix, 4)
    b.start(0, [*range(9)])
    b.release(0)
    b.start(1, [7] * 3)
    before = Snapshot(b.strategy)
    assert b.admit(2, [*range(16)]) is None, "2 idle hits and 2 more, of 3"
    assert b.admit(2, [*range(9)], leave=1) is None
    assert before.difference(b.strategy) is None
    assert b.admit(2, [*range(9)]) == Grant(8, 12)
    b.launch(2)
    b.check()


def test_what_lookup_said_may_be_gone_when_it_is_admitted(bench):
    """The number of cached blocks changed between the check and the allocation (nano-vllm #211, #233)."""
    b = bench(Prefix, 3)
    b.start(0, TEN)
    b.release(0)
    assert b.strategy.lookup(b.arrival(1, TEN)) == 8
    b.start(2, [5] * 7)
    b.release(2)
    assert b.start(1, TEN) == b.strategy.lookup(b.arrival(3, TEN)) - 4 == 4
    b.check()


def test_hits_stop_at_a_gap_and_go_on_when_it_is_filled(bench):
    """Blocks behind an evicted one were counted as hits (llm-d-inference-sim #701)."""
    b = bench(Prefix, 5, eviction=FIFO())
    b.start(0, [*range(4)])
    b.release(0)
    b.start(1, [*range(12)])
    b.release(1)
    b.start(2, [9] * 9)
    b.release(2)
    assert b.strategy.counts["evicted"] == 4, "the first block of the chain: it came in first"
    assert b.strategy.lookup(b.arrival(3, [*range(12), 0])) == 0
    assert b.start(3, [*range(4)]) == 0
    assert b.strategy.lookup(b.arrival(4, [*range(12), 0])) == 12
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


def test_without_room_for_a_copy_the_last_owner_takes_the_block_out_of_the_cache(bench):
    """Else a sequence alone could not reach what `longest` promises."""
    b = bench(Prefix, 2)
    b.start(0, TEN[:8])
    b.fork(0, 1, 6)
    b.release(0)
    assert b.grow(1, 60, 61) == 8
    assert not b.strategy.moves
    b.launch(1)
    b.check()
    b.release(1)
    assert b.strategy.lookup(b.arrival(2, TEN)) == 4
    assert b.strategy.lookup(b.arrival(2, [*TEN[:6], 60, 61, 0])) == 8


def test_the_source_of_a_copy_is_not_evicted_before_the_drain(bench):
    b = bench(Prefix, 4)
    b.start(0, TEN[:8])
    b.fork(0, 1, 6)
    b.release(0)
    b.grow(1, 60)
    assert (b.blocks("held"), b.blocks("rounded"), b.blocks("cached")) == (3, 1, 0)
    assert b.admit(2, [9] * 8) is None
    assert b.admit(2, TEN[:9]) == Grant(8, 12), "but it may be hit"
    assert (b.blocks("held"), b.blocks("rounded")) == (4, 0)
    b.launch(1, 2)
    b.check()


def test_lfu_and_priority_keep_what_is_used_often_or_matters(bench):
    for eviction, options in ((LFU(), {}), (Priority(), {"priority": 5})):
        b = bench(Prefix, 4, eviction=eviction)
        for seq in (0, 1, 2):
            b.start(seq, [1] * 5, **options)
            b.release(seq)
        b.start(3, [2] * 5)
        b.release(3)
        b.start(4, [3] * 12)
        b.release(4)
        assert b.strategy.lookup(b.arrival(5, [1] * 5)) == 4, eviction


def test_one_queue_evicts_what_is_cached_while_free_blocks_are_left(bench):
    """The order of vLLM 0.21: free and idle blocks wait in one line, and block 0 is never used."""
    b = bench(Prefix, 5, one_queue=True, null_block=True)
    assert (b.strategy.longest, b.blocks("free")) == (16, 4)
    b.start(0, TEN[:5])
    assert b.strategy.table[0].tolist() == [1, 2]
    b.release(0)
    b.start(1, [7] * 9)
    assert b.strategy.table[1].tolist() == [3, 4, 2]
    b.release(1)
    b.start(2, [8] * 3)
    assert b.strategy.table[2].tolist() == [1]
    assert (b.strategy.counts["evicted"], b.strategy.counts["evicted_beyond_need"]) == (4, 4)
    assert (b.blocks("held"), b.blocks("cached"), b.blocks("free")) == (1, 2, 1)


def test_clear_forgets_what_nobody_owns(bench):
    for options in ({}, {"one_queue": True, "null_block": True}):
        b = bench(Prefix, 9, **options)
        b.start(0, TEN)
        b.start(1, [7] * 9)
        b.release(1)
        b.strategy.clear()
        assert (b.blocks("cached"), b.strategy.counts["evicted"]) == (0, 0)
        assert b.start(2, [7] * 9) == 0
        assert b.start(3, TEN) == 8
        b.check()


def test_a_chain_leaves_nothing_behind(bench):
    b = bench(Prefix, 20)
    for seq in range(5):
        b.start(seq, [*range(seq * 3), *range(50, 60)])
    b.release(*range(5))
    b.strategy.clear()
    left = [getattr(b.strategy, name) for name in ("others", "like", "priority", "told", "space", "rank")]
    assert left == [{}] * 6
    assert not any(b.strategy.published)
    places = b.strategy.places
    assert (places.several, places.space, places.openings.after) == ({places.root: {}}, {}, {})
    assert [*places.after] == [NONE] * 20 + [SEVERAL]


def test_a_gap_is_forgotten_with_the_last_thing_behind_it(bench):
    b = bench(Prefix, 40, eviction=FIFO())
    for seq in range(3):
        b.start(seq, [*range(8), *range(seq * 10, seq * 10 + 8), 0])
        b.release(seq)
    places, gaps = b.strategy.places, []
    for _ in range(8):
        b.strategy.evict(1)
        gaps.append(len(places.before) - 1 - places.root - len(places.unused))
    assert gaps == [0, 0, 1, 2, 2, 2, 2, 0], "the first two blocks, which the others begin with as well, come third"
    assert (places.several, places.openings.after) == ({places.root: {}}, {})


def test_a_place_that_is_done_with_is_taken_by_another_content(bench):
    b = bench(Prefix, 20)
    b.start(0, [*range(16)])
    for seq in range(1, 40):
        b.start(seq, [seq * 100 + n for n in range(40)])
        b.release(seq)
        b.check()
    assert len(b.strategy.places.before) == 20 + 1
    assert b.strategy.lookup(b.arrival(99, [*range(16)])) == 12


def test_a_double_release_is_an_error_and_changes_nothing(bench):
    b = bench(Prefix, 4)
    b.start(0, TEN)
    b.release(0)
    with pytest.raises(KeyError):
        b.strategy.release(0)
    assert (b.blocks("cached"), b.blocks("free")) == (2, 2)


def test_a_word_that_is_not_known_is_refused(bench):
    with pytest.raises(ValueError, match=r"duplicates=merge: allowed is keep, dedupe"):
        bench(Prefix, 4, duplicates="merge")
