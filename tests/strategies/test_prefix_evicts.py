"""The prefix cache: who is evicted, who is not, and that what is gone leaves nothing behind."""

from __future__ import annotations

from kvlab.eviction import FIFO
from kvlab.strategies.places import NONE, SEVERAL
from kvlab.strategies.prefix import Prefix
from kvlab.strategy import Grant
from kvlab.testing.snapshot import Snapshot

TEN = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


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
    assert (places.several, places.heads, places.openings.after) == ({places.root: {}}, {}, {})
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
