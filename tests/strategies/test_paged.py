"""Paged: forks share blocks, and who writes into a shared one copies it first."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from kvlab.strategies.paged import Paged
from kvlab.strategy import Arrival, Copy, Grant, Memory


@pytest.mark.parametrize(("length", "copies"), [(3, 1), (4, 0), (5, 1)])
def test_a_fork_copies_nothing_and_the_first_to_write_into_the_last_block_does(bench, length, copies):
    """A full last block is not copied, a partly filled one exactly once (vllm #417, xllm #1984)."""
    b = bench(Paged, 10)
    b.start(0, [*range(length)])
    held = b.blocks("held")
    assert b.fork(0, 1, length) == Grant(length, held * 4)
    assert (b.copies(), b.blocks("held")) == ([], held)
    b.grow(0, 50)
    assert len(b.strategy.moves) == copies
    b.grow(1, 51)
    assert len(b.strategy.moves) == copies, "the last owner writes in place"
    b.launch(0, 1)
    b.check()
    assert b.blocks("held") == held + 1 + (length == 4)


@pytest.mark.parametrize("children", [1, 2, 5])
def test_as_many_copies_as_owners_but_one(bench, children):
    """Parent and children all append to one partly filled block (vllm #417)."""
    b = bench(Paged, 20)
    b.start(0, [1, 2, 3, 4, 5])
    for child in range(1, children + 1):
        b.fork(0, child, 5)
    for seq in range(children + 1):
        assert b.grow(seq, 60 + seq) == 8
    assert [move.tokens for move in b.strategy.moves] == [1] * children
    b.launch(*range(children + 1))
    b.check()
    assert b.strategy.sharers == {0: children}


def test_a_beam_step_the_parent_dies_and_two_children_survive(bench):
    """As many owners as table entries at all times, and a release returns only what nobody else has (vllm #644)."""
    b = bench(Paged, 12)
    b.start(0, [1, 2, 3, 4, 5, 6])
    b.fork(0, 1, 6)
    b.fork(0, 2, 6)
    assert b.strategy.returns(0) == 0
    b.release(0)
    assert (b.blocks("held"), b.strategy.sharers) == (2, {0: 1, 1: 1})
    b.grow(1, 7)
    b.grow(2, 8)
    assert b.strategy.moves == [Copy(4, 8, 2)]
    b.launch(1, 2)
    b.check()
    b.release(1)
    assert (b.blocks("held"), b.strategy.returns(2)) == (2, 8)
    b.release(2)
    assert b.blocks("free") == 12


def test_one_of_two_owners_is_aborted(bench):
    """Its cleanup set the count of the shared blocks to zero and freed what the other used (atlas #373)."""
    b = bench(Paged, 4)
    b.start(0, [1, 2, 3, 4, 5])
    b.fork(0, 1, 5)
    b.release(0)
    assert b.start(2, [7] * 8) == 0
    b.check()


def test_the_source_of_a_copy_is_held_until_the_drain(bench):
    """Freed at once, it went to somebody else before it was read."""
    b = bench(Paged, 4)
    b.start(0, [1, 2, 3, 4, 5])
    b.fork(0, 1, 5)
    b.grow(0, 6)
    b.release(1)
    assert (b.blocks("held"), b.blocks("rounded"), b.blocks("free")) == (3, 1, 1)
    assert b.admit(2, [7] * 8) is None
    b.launch(0)
    b.check()
    assert (b.blocks("held"), b.blocks("rounded"), b.blocks("free")) == (2, 0, 2)
    assert b.start(2, [7] * 8) == 0
    b.check()


def test_a_copy_that_finds_no_block_changes_nothing(bench):
    b = bench(Paged, 3)
    b.start(0, [1, 2, 3, 4, 5])
    b.fork(0, 1, 5)
    b.start(2, [9])
    before = copy.deepcopy({**vars(b.strategy), "table": None, "tables": None})
    assert b.grow(1, 6) is None
    assert {**vars(b.strategy), "table": None, "tables": None} == before
    b.release(0)
    assert b.grow(1, 6) == 8
    assert not b.strategy.moves
    b.launch(1)
    b.check()


@pytest.mark.parametrize(("length", "returned"), [(12, 0), (9, 0), (8, 1), (5, 1), (4, 2), (1, 2)])
def test_truncating_returns_whole_blocks(bench, length, returned):
    """The block that holds the last token stays; what is written next is written there (vllm-mlx #380)."""
    b = bench(Paged, 8)
    b.start(0, [*range(12)])
    b.fork(0, 1, 12)
    b.strategy.truncate(0, length)
    b.ids[0], b.stored[0] = b.ids[0][:length], length
    assert sum(block in b.strategy.sharers for block in range(3)) == 3 - returned
    assert b.grow(0, 77, 78) == (length + 5) // 4 * 4
    b.launch(0)
    b.check()


def test_a_second_release_is_an_error_and_frees_nothing(bench):
    """Two owners both freed one slot (sglang-jax #982, #1147)."""
    b = bench(Paged, 4)
    b.start(0, [1, 2])
    b.fork(0, 1, 2)
    b.strategy.release(1)
    with pytest.raises(KeyError):
        b.strategy.release(1)
    assert (b.blocks("held"), b.blocks("free")) == (1, 3)


def test_a_fork_of_or_to_a_sequence_that_is_wrong_is_an_error_and_changes_nothing(bench):
    b = bench(Paged, 4)
    b.start(0, [1, 2])
    b.start(1, [1, 2])
    for parent, child in ((7, 8), (0, 1)):
        with pytest.raises(KeyError):
            b.strategy.fork(parent, b.arrival(child, [1, 2]))
    assert not b.strategy.sharers
    assert len(b.strategy.table) == 2


def test_who_overrides_extend_alone_is_asked_one_by_one():
    """The faster extend_all that it inherited went past it."""
    asked = []

    class Asked(Paged):
        def extend(self, seq, length, upto):
            asked.append(seq)
            return super().extend(seq, length, upto)

    strategy = Asked(Memory(100, 1, 20, 4, 20), 4)
    for seq in range(3):
        strategy.admit(Arrival(seq, 4, 4, 20, 20), 4)
    assert strategy.extend_all([0, 1, 2], np.full(3, 4), np.full(3, 5)) == [8, 8, 8]
    assert asked == [0, 1, 2]
