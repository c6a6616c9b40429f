"""Faults that others have published, of what is shared: owners miscounted, copies forgotten, freed while in use.

Every setting that it may happen to is driven into the trigger; the contract judges each step (conftest.Scene).
docs/faults.md lists them all.
"""

from __future__ import annotations

import pytest

from kvlab.testing.snapshot import Snapshot

TEN = [*range(1, 11)]


@pytest.mark.parametrize("length", [3, 4, 5])
def test_a_fork_shares_what_is_full_and_copies_what_is_not(sharing, length):
    """The last block was copied, or shared, on the wrong condition (vllm #417); a beam's append to a shared
    block that was partly filled forgot the copy (xllm #1984)."""
    scene = sharing()
    scene.start(0, TEN[:length])
    held = scene.tokens("held")
    assert scene.fork(0, 1)
    at_once = length % scene.unit if scene.strategy.virtual else 0  # tokens behind the last whole page group
    assert scene.tokens("held") == held + scene.unit * (at_once > 0)
    assert scene.grow(0, 50)
    assert scene.grow(1, 51)
    scene.compute(0, 1)
    assert scene.trial.seen["copy"] == (length % scene.unit > 0), "of two owners the last writes in place"
    assert scene.tokens("held") == held + scene.unit * (1 + (length % scene.unit == 0))
    scene.end()


def test_beams_whose_parents_die_or_survive_twice(anyone):
    """Beam search gave wrong texts: of three beams one goes on twice and one dies, at every step (vllm #644)."""
    scene = anyone(256, max_seqs=6)
    scene.start(0, TEN[:3])
    assert scene.fork(0, 1)
    assert scene.fork(0, 2)
    beams, number = [0, 1, 2], 3
    for step in range(8):
        survivors = [beams[step % 3], beams[step % 3], beams[(step + 1) % 3]]
        children = range(number, number + 3)
        for parent, child in zip(survivors, children, strict=True):
            assert scene.fork(parent, child)
        scene.release(*beams)
        for child in children:
            assert scene.grow(child, 100 + child)
        scene.compute(*children)
        scene.check()
        beams, number = list(children), number + 3
    scene.end()


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("length", [8, 10])
def test_one_owner_is_aborted_and_the_others_keep_what_they_share(sharing, gone, length):
    """The cleanup of one request took its blocks from all owners, and gave them away (atlas #373)."""
    scene = sharing(32)
    scene.start(0, TEN[:length])
    assert scene.fork(0, 1)
    assert scene.fork(1, 2, 8)
    stay = [seq for seq in (0, 1, 2) if seq != gone]
    back = scene.strategy.returns(gone)
    before = scene.tokens("held")
    scene.release(gone)
    scene.trial.settle()
    assert before - scene.tokens("held") == back
    assert scene.fill(10), "whatever it gave back is written by somebody else"
    scene.release(*[seq for seq in scene.trial.running if seq >= 10])
    for seq in stay:
        assert scene.grow(seq, 90 + seq)
    scene.compute(*stay)
    scene.end()


def test_a_second_release_frees_nothing(anyone):
    """A slot was freed by the request and by whoever else had it (sglang-jax #982, #1147)."""
    scene = anyone()
    scene.start(0, TEN)
    assert scene.fork(0, 1)
    scene.release(0)
    scene.trial.settle()
    before = Snapshot(scene.strategy)
    for _ in range(2):
        with pytest.raises(KeyError):
            scene.strategy.release(0)
    assert before.difference(scene.strategy) is None
    scene.end()


def test_two_that_finish_with_the_same_text_give_each_block_back_once(caching):
    """Finishing, a request freed the slots whose text the tree had already, and the tree did too (sglang-jax
    #982, #1147)."""
    scene = caching()
    for seq in range(3):
        assert scene.admit(seq, TEN)
    scene.compute(0, 1, 2)
    scene.check()
    for seq in range(3):
        scene.release(seq)
        scene.check()
    assert scene.start(3, TEN) > 0
    scene.end()


def test_no_table_has_a_block_twice(sharing):
    """A block that was in a table several times was freed once for each set of blocks and counted down once
    for each entry, or the reverse (vllm #1556, #1584, #3347). Only equal text behind equal text is one block."""
    scene = sharing()
    for seq in range(2):
        scene.start(seq, [7] * 13)
    assert scene.grow(1, *[7] * 4)
    scene.compute(1)
    assert scene.fork(1, 2)
    for seq in range(3):
        entries = scene.strategy.table[seq].tolist()
        assert len(set(entries)) == len(entries)
    scene.check()
    scene.release(1)
    scene.check()
    scene.end()


@pytest.mark.parametrize("common", [1, 4, 5, 7, 8, 11, 12])
def test_a_suffix_is_never_written_into_a_prefix_that_is_cached(caching, common):
    """Where a hit ended inside a block, the rest of the prompt was written into that very block (tt-xla #4190); where
    those tokens were copied, too few or too many of them were (TensorRT-LLM #4943, #8108)."""
    scene, told = caching(), [*range(1, 13), 0]
    scene.start(0, told)
    assert scene.start(1, [*told[:common], 50, 51, 52, 53, 54]) == common // scene.grain * scene.grain
    scene.release(0)
    assert scene.start(2, told) == 12
    scene.end()


def test_a_fork_inside_a_cached_block_writes_elsewhere(caching):
    """The same by another way: cut off inside a published block, the child goes on there (tt-xla #4190)."""
    scene = caching()
    scene.start(0, TEN)
    assert scene.fork(0, 1, 6)
    scene.release(0)
    assert scene.grow(1, 60, 61, 62)
    scene.compute(1)
    assert scene.start(2, TEN) >= 8
    scene.end()


def test_an_abort_before_the_copies_into_it_were_made(anyone):
    """An abort while keys and values were still on their way either leaked their blocks (vllm-ascend #16662, vllm
    #46283, #46289) or gave them away too early, and what arrived destroyed the new owner's (vllm #32255)."""
    scene = anyone(64)
    scene.start(0, TEN)
    assert scene.fork(0, 1, 9)
    assert scene.grow(1, 60)
    scene.release(1)  # nothing of it was drained
    assert scene.grow(0, 61)
    scene.fill(10)
    scene.compute(0)
    scene.end()


def test_the_source_of_a_copy_is_nobodys_before_the_copy(anyone):
    """Blocks went to their next owner while a transfer was still to read them (TensorRT-LLM #8813, #9056): whoever is
    copied from leaves, and its successor asks at once."""
    scene = anyone(64)
    scene.start(0, TEN)
    assert scene.fork(0, 1, 9)
    assert scene.grow(1, 60)
    scene.release(0)
    scene.fill(10)
    scene.compute(1)
    scene.end()
