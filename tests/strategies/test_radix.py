"""The radix tree: hits inside edges, splits, eviction from the leaves, and copies of blocks hit in part."""

from __future__ import annotations

import copy

import pytest

from kvlab.eviction import FIFO, LFU
from kvlab.strategies.radix import Radix
from kvlab.strategy import Copy, Grant

TEN = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def edges(strategy):
    """The tree as nested lists: the blocks of each edge, then what is below."""

    def below(number):
        return [[strategy.nodes[child].blocks, *below(child)] for child in strategy.nodes[number].children.values()]

    return below(0)


@pytest.mark.parametrize(("block_size", "hit"), [(1, 7), (4, 4), (16, 0)])
def test_hits_are_whole_blocks(bench, block_size, hit):
    b = bench(Radix, 40, block_size)
    b.start(0, TEN)
    assert b.start(1, [*TEN[:7], 0, 0, 0]) == hit
    b.check()


@pytest.mark.parametrize(("block_size", "hit"), [(1, 7), (4, 4)])
def test_a_full_prompt_hit_leaves_a_token_to_compute(bench, block_size, hit):
    """nano-vllm #144."""
    b = bench(Radix, 40, block_size)
    b.start(0, TEN[:8])
    assert b.start(1, TEN[:8]) == hit
    b.check()


def test_an_edge_is_split_where_two_sequences_part_and_grows_where_one_goes_on(bench):
    b = bench(Radix, 20, 1)
    b.start(0, [1, 2, 3])
    assert edges(b.strategy) == [[[0, 1, 2]]]
    b.grow(0, 4)
    b.launch(0)
    assert edges(b.strategy) == [[[0, 1, 2, 3]]]
    b.start(1, [1, 2, 9])
    assert edges(b.strategy) == [[[0, 1], [[2, 3]], [[4]]]]
    b.start(2, [5])
    b.grow(1, 9)
    b.launch(1)
    assert edges(b.strategy) == [[[0, 1], [[2, 3]], [[4, 6]]], [[5]]]
    b.check()
    nodes = b.strategy.nodes
    assert all(b.strategy.number[block] == number for number, node in nodes.items() for block in node.blocks)
    assert all(nodes[child].parent == number for number, node in nodes.items() for child in node.children.values())


def test_two_requests_with_one_prefix_in_one_step_compute_both_and_keep_one(bench):
    """What is computed twice is stored once: the second table is rewritten (nano-vllm #208; sglang-jax #982)."""
    b = bench(Radix, 10)
    assert b.admit(0, TEN) == b.admit(1, TEN) == Grant(0, 12)
    b.launch(0, 1)
    b.check()
    assert b.strategy.table[0][:2].tolist() == b.strategy.table[1][:2].tolist()
    assert (b.blocks("held"), b.strategy.counts["duplicates"]) == (4, 8)
    b.release(0)
    b.release(1)
    assert (b.blocks("held"), b.blocks("cached"), b.blocks("free")) == (0, 2, 8)


def test_spaces_never_share(bench):
    b = bench(Radix, 12, partial="copy")
    b.start(0, TEN, space=1)
    assert b.start(1, TEN) == 0
    assert b.start(2, [*TEN[:2], 0], space=11) == 0
    assert b.start(3, [*TEN[:2], 0], space=1) == 2
    b.check()


@pytest.mark.parametrize(("evict", "left", "beyond"), [("leaf", 8, 8), ("block", 16, 0)])
def test_a_leaf_goes_whole_or_as_far_as_is_needed(bench, evict, left, beyond):
    """A whole leaf for one block (SGLang) loses hits that were not in the way."""
    b = bench(Radix, 6, evict=evict)
    b.start(0, [*range(8)])
    b.release(0)
    b.start(1, [*range(20)])
    b.start(2, [*range(8), *[50] * 4])
    b.release(2, 1)
    assert [len(leaf[0]) for leaf in edges(b.strategy)[0][1:]] == [3, 1]
    b.start(3, [60])
    b.start(4, [70] * 4)
    b.release(3, 4)
    assert b.strategy.counts["evicted_beyond_need"] == beyond * (b.strategy.counts["evicted"] > 4)
    assert b.strategy.lookup(b.arrival(5, [*range(20), 0])) in (left, left + 4)


def test_what_is_in_use_and_all_before_it_stay(bench):
    """Interior nodes were counted as evictable, and preemption freed nothing (LLMServingSim)."""
    b = bench(Radix, 4)
    b.start(0, [*range(8)])
    b.release(0)
    b.start(1, [*range(5)])
    assert (b.blocks("held"), b.blocks("cached"), b.blocks("free")) == (2, 1, 1)
    assert b.strategy.usage().largest == 8
    b.start(2, [7] * 8)
    assert b.strategy.lookup(b.arrival(3, [*range(9)])) == 4
    b.check()


def test_evicting_an_interior_node_takes_all_below_so_hits_stop_there(bench):
    """A block behind a gap was a hit (llm-d-inference-sim #701). Here FIFO names the oldest, which is interior."""
    b = bench(Radix, 4, eviction=FIFO())
    b.start(0, [*range(4)])
    b.release(0)
    b.start(1, [*range(12)])
    b.release(1)
    b.start(2, [9] * 8)
    assert b.strategy.counts["evicted"] == 12
    assert b.strategy.counts["evicted_beyond_need"] == 8
    assert b.strategy.lookup(b.arrival(3, [*range(12)])) == 0
    assert edges(b.strategy) == [[b.strategy.table[2].tolist()]]


@pytest.mark.parametrize(
    ("partial", "ids", "hit", "copied"),
    [
        ("copy", [*TEN[:7], 0], 7, 3),
        ("copy", TEN[:8], 7, 3),
        ("copy", [*TEN[:2], 0], 2, 2),
        ("copy", [*TEN[:4], 0], 4, 0),
        ("recompute", [*TEN[:7], 0], 4, 0),
    ],
)
def test_a_block_hit_in_part_is_copied_or_computed_again(bench, partial, ids, hit, copied):
    """In place it would be written by its new owner (tt-xla #4190, TensorRT-LLM #4943)."""
    b = bench(Radix, 10, partial=partial)
    b.start(0, TEN)
    assert b.strategy.lookup(b.arrival(1, ids)) == hit
    assert b.admit(1, ids).hit == hit
    assert [move.tokens for move in b.strategy.moves] == [copied] * (copied > 0)
    b.launch(1)
    b.check()


def test_of_several_blocks_the_one_that_agrees_longest_is_copied(bench):
    b = bench(Radix, 10, partial="copy")
    for seq, ids in enumerate(([1, 2, 9, 9], [1, 2, 3, 9], [1, 9, 9, 9])):
        b.start(seq, ids)
    b.admit(3, [1, 2, 3, 4, 5])
    assert b.strategy.moves == [Copy(4, 12, 3)]
    b.launch(3)
    b.check()


def test_a_block_that_is_to_be_copied_is_not_evicted_before_the_drain(bench):
    """Nor freed twice when the tree above it goes (found by random lives with LFU)."""
    b = bench(Radix, 5, partial="copy")
    b.start(0, TEN[:8])
    b.release(0)
    assert b.admit(1, [*TEN[:6], 0]) == Grant(6, 8)
    assert (b.blocks("held"), b.blocks("rounded"), b.blocks("cached")) == (3, 1, 0)
    assert b.admit(2, [9] * 12) is None
    b.release(1)
    assert b.admit(2, [9] * 16) == Grant(0, 16)
    b.launch(2)
    b.check()
    assert (b.blocks("held"), b.blocks("cached") + b.blocks("free")) == (4, 1)


def test_a_hit_never_makes_an_arrival_too_large(bench):
    """A pool that it fills alone has no block left for the source of a copy."""
    b = bench(Radix, 2, partial="copy")
    b.start(0, TEN[:8])
    b.release(0)
    assert b.start(1, [*TEN[:6], 0, 0]) == 4
    b.check()


def test_refused_arrivals_leave_the_tree_and_its_order_alone(bench):
    """A lookup, or an attempt, split nodes and made them recently used."""
    b = bench(Radix, 6, 4, LFU(), partial="copy")
    b.start(0, TEN)
    b.start(1, [*TEN[:4], 0, 0, 0, 0])
    b.release(1)

    def state():
        kept = {name: value for name, value in vars(b.strategy).items() if name not in ("table", "tables", "idle")}
        return copy.deepcopy((kept, vars(b.strategy.idle)))

    before = state()
    assert b.strategy.lookup(b.arrival(2, [*TEN[:6], *[0] * 14])) == 6
    assert b.admit(2, [*TEN[:6], *[0] * 14]) is None
    assert state() == before


def test_a_fork_in_the_middle_of_a_published_block_copies_it(bench):
    """tt-xla #4190."""
    b = bench(Radix, 8)
    b.start(0, TEN[:8])
    b.fork(0, 1, 6)
    b.release(0)
    b.grow(1, 60, 61)
    b.launch(1)
    b.check()
    assert edges(b.strategy) == [[[0], [[1]], [[2]]]]


def test_without_room_for_a_copy_the_last_owner_takes_the_block_and_all_below_out_of_the_tree(bench):
    b = bench(Radix, 3)
    b.start(0, [*range(12)])
    b.fork(0, 1, 6)
    b.release(0)
    b.grow(1, 60, 61, 62)
    assert not b.strategy.moves
    b.launch(1)
    b.check()
    assert b.strategy.lookup(b.arrival(2, [*range(12)])) == 4


def test_the_tree_leaves_nothing_behind(bench):
    b = bench(Radix, 60, 1, partial="copy")
    for seq in range(5):
        b.start(seq, [*range(seq), *range(50, 58)], space=seq % 2)
    b.release(*range(5))
    assert b.blocks("held") == 0
    b.strategy.clear()
    assert edges(b.strategy) == []
    assert len(b.strategy.nodes) == 1
    assert [getattr(b.strategy, name) for name in ("number", "priority", "told", "space", "rank")] == [{}] * 5
    assert not any(b.strategy.published)
    assert b.blocks("free") == 60


@pytest.mark.parametrize("options", [{"evict": "node"}, {"partial": "share"}])
def test_a_word_that_is_not_known_is_refused(bench, options):
    with pytest.raises(ValueError, match="allowed is"):
        bench(Radix, 4, **options)
