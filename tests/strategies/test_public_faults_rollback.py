"""Faults that others have published, of what is half done: leaks after an abort, a refusal, a rejected draft.

docs/faults.md lists them all.
"""

from __future__ import annotations

import pytest

from kvlab.testing import honesty

TEN = [*range(1, 11)]


def refused(scene):
    """Never came in."""
    scene.fill(10)
    assert not scene.admit(1, TEN)


def not_drained(scene):
    assert scene.admit(1, TEN)
    scene.release(1)


def nothing_written(scene):
    assert scene.admit(1, TEN)
    scene.trial.settle()
    scene.release(1)


def in_a_prompt(scene):
    assert scene.admit(1, [*TEN, 11, 12, 13], new=6)
    scene.compute(1, upto=6)
    scene.release(1)


def decoding(scene):
    scene.start(1, TEN)
    assert scene.grow(1, 50)
    scene.release(1)


def refused_growth(scene):
    """Of the room that it asks for there is a part."""
    scene.start(1, TEN)
    scene.fill(10, spare=5)
    for _ in range(2):
        if scene.grow(1, *[50] * 11):
            scene.compute(1)
    scene.release(1)


def parent(scene):
    scene.start(1, TEN)
    assert scene.fork(1, 2)
    scene.release(1)


def child(scene):
    scene.start(1, TEN)
    assert scene.fork(1, 2, 7)
    assert scene.grow(2, 60)
    scene.release(2)


def refused_fork(scene):
    """No room, or no table."""
    scene.start(1, TEN)
    number = 2
    while scene.fork(1, number, 9):
        assert number < 9
        number += 1
    scene.release(1)


STATES = [refused, not_drained, nothing_written, in_a_prompt, decoding, refused_growth, parent, child, refused_fork]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_an_abort_in_any_state_gives_everything_back(anyone, state):
    """A slot that was taken before the step failed was never returned, and the server stopped at its own leak check
    (sglang #6888, #11970, #105, #140, #9927, #16067). Twice each: the second time a prefix may be in place."""
    scene = anyone(128)
    scene.start(0, [7] * 5)
    for _ in range(2):
        state(scene)
        scene.check()
        scene.release(*[seq for seq in scene.trial.running if seq])
    assert scene.grow(0, 8)
    scene.compute(0)
    scene.end()


def test_who_is_preempted_anywhere_in_a_block_comes_back_whole(anyone):
    """Retracted where their prefix did not end with a page, sequences left slots behind (sglang #4977). What they
    had stored is what they have when they are back, and a hit is no more than that (LMCache #1361, #2007, #2158)."""
    for offset in (1, 2, 3, 4, 5, 8, 9):
        scene = anyone(64)
        scene.start(0, TEN[:offset])
        assert scene.grow(0, 60, 61)
        scene.compute(0)
        (said,) = scene.release(0)
        scene.check()
        looked = scene.lookup(said)
        assert scene.start(0, said) == looked <= offset + 1
        assert scene.grow(0, 62)
        scene.compute(0)
        scene.end()


@pytest.mark.parametrize(("length", "kept"), [(3, 1), (3, 5), (4, 1), (4, 4), (5, 2), (5, 3)])
def test_rejected_drafts_leave_neither_slots_nor_texts_behind(anyone, length, kept):
    """Slots of rejected drafts were not counted and never came back (sglang #13826, #27789: one page too few); the
    stale end of a cache that was cut was then attended (vllm-mlx #380, #775); cut too far, or by less than nothing
    (mlx-lm #1109, #1427, #1528, mlxcel #994). Of five drafts `kept` stay."""
    scene = anyone(64)
    scene.start(0, TEN[:length])
    for first in (50, 60):
        before = len(scene.trial.running[0].ids)
        assert scene.grow(0, *range(first, first + 5))
        scene.compute(0, tell=False)
        scene.cut(0, before + kept)
        if scene.strategy.block_size or scene.strategy.virtual:
            assert scene.tokens("held") == -(-(before + kept) // scene.unit) * scene.unit
        scene.check()
    assert scene.grow(0, 70, 71)
    scene.compute(0)
    scene.end()


def test_what_is_needed_is_what_is_taken_and_comes_back(anyone):
    """The estimate of what a request needs and what it was then given were worked out in two ways (vllm #46892). Of
    every length: `largest` falls by what is held, a release returns it, and what is refused changes nothing."""
    for length in (1, 3, 4, 5, 8, 13, 19):
        scene = anyone(40)
        before = scene.strategy.usage()
        assert scene.admit(0, [5] * length)
        usage = scene.strategy.usage()
        assert usage.held == before.free - usage.free
        if usage.largest < scene.strategy.longest:
            assert not scene.admit(1, [6] * (usage.largest + 1))
        if usage.largest:
            assert scene.admit(1, [6] * usage.largest)
            scene.release(1)
        scene.trial.settle()
        honesty.returns_is_exact(scene.trial)
        scene.release(0)
        scene.check()
        assert scene.strategy.usage()[:5] == before[:5]


def test_a_growth_that_stops_half_way_is_undone(anyone):
    """Of what was asked for at once the first parts stayed taken when a later one failed (Hugging Face transformers,
    over its layer groups; kvcached #364, over pages): sequences ask for room to the last."""
    scene = anyone(72, max_seqs=8)
    for seq in range(8):
        if scene.admit(seq, [20 + seq] * 5):
            scene.compute(seq)
    while not scene.trial.seen["extend refused"] + scene.trial.seen["admit refused"]:
        for seq in list(scene.trial.running):
            scene.grow(seq, *[30 + seq] * 3)
        scene.compute(*[seq for seq, sequence in scene.trial.running.items() if len(sequence.ids) > sequence.done])
        scene.check()
    scene.end()
