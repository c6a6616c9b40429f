"""Faults that others have published, of prefix caches: false hits, stale entries, blocks evicted from under a hit.

docs/faults.md lists them all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvlab.testing import honesty

TEN = [*range(1, 11)]


# --- what hits


@pytest.mark.parametrize("common", [0, 1, 3, 4, 5, 7, 8, 11, 12])
def test_a_hit_is_counted_in_tokens_and_leaves_one(caching, common):
    """A prompt that was found whole left a launch of no token (nano-vllm #144); lengths in other units than
    tokens split a tree at the wrong place (sglang #34823) or made hits of pages where blocks were shared
    (LLMServingSim). A stored text of 12 tokens is met at every place, by one that goes on and one that ends there."""
    scene, stored = caching(), [*range(1, 13)]
    scene.start(0, [*stored, 0])
    hit = common // scene.grain * scene.grain
    assert scene.lookup([*stored[:common], 99, 98]) == scene.start(1, [*stored[:common], 99, 98]) == hit
    if common:
        assert scene.start(2, stored[:common]) == (common - 1) // scene.grain * scene.grain
    assert scene.start(3, [*stored, 97]) == 12
    scene.end()


def test_nothing_hits_what_the_same_step_computes(caching):
    """The second of two equal prompts was given blocks that the first was only about to compute (nano-vllm #208
    and #209, vllm #5364 and #7822)."""
    scene = caching()
    assert scene.admit(0, TEN)
    assert scene.lookup(TEN) == 0
    assert scene.admit(1, TEN)
    assert [scene.trial.running[seq].done for seq in (0, 1)] == [0, 0]
    scene.compute(0, 1)
    assert scene.lookup(TEN) >= 8
    scene.end()


def test_a_prompt_in_pieces_is_published_as_far_as_it_is_stored(caching):
    """A block was known by its hash before all of it was computed (vllm #5364, #7822): pieces of 3, 3 and 6 tokens
    end inside blocks of 4."""
    scene, prompt = caching(), [*range(1, 13)]
    assert scene.admit(0, [*prompt, 0])
    for upto in (3, 6, 12):
        scene.compute(0, upto=upto)
        assert scene.lookup([*prompt, 99]) == upto // scene.unit * scene.unit
    scene.release(0)
    assert scene.start(1, [*prompt, 99]) == 12
    scene.end()


def test_drafts_are_never_published(caching):
    """Of four drafts one is taken; nobody may hit the others, and what follows it may be hit (vllm #7822)."""
    scene = caching()
    scene.start(0, TEN)
    assert scene.grow(0, 11, 12, 13, 14)
    scene.compute(0, tell=False)
    scene.cut(0, 11)
    assert scene.grow(0, 21)
    scene.compute(0)
    for text, common in (([*TEN, 11, 12, 13, 14, 0], 11), ([*TEN, 11, 21, 0], 12)):
        assert scene.lookup(text) == common // scene.grain * scene.grain
        honesty.cache_is_true(scene.trial, [(text[:-1], 0)])
    scene.end()


def test_equal_blocks_behind_different_ones_are_different(caching):
    """Blocks known by their own tokens alone gave 53 false hits in 300 requests (LLMServingSim)."""
    scene = caching()
    scene.start(0, [1, 1, 1, 1, 5, 6, 7, 8, 0])
    scene.start(1, [2, 2, 2, 2, 0, 0])
    assert scene.start(2, [2, 2, 2, 2, 5, 6, 7, 8, 0]) == 4
    assert scene.start(3, [5, 6, 7, 8, 0]) == 0
    assert scene.start(4, [1, 1, 1, 1, 5, 6, 7, 8, 9]) == 8
    scene.end()


def test_no_hit_crosses_from_one_user_to_another(caching):
    """Hashes that could be foreseen, None among them, let a prompt hit what another user had stored (vllm
    #12621, #15297). Here a space is part of the text; -1 and -2 have one hash in Python."""
    scene = caching(128)
    for seq, space in enumerate((-1, -2, 0, 1, 11, 1 << 61)):
        assert scene.start(seq, [*TEN[:8], 0], space=space) == 0
    assert scene.lookup([*TEN[:8], 0], space=11) == 8
    scene.end()


@pytest.mark.parametrize("index", ["prefix", "radix"])
def test_hits_do_not_depend_on_the_process(index):
    """A seed of each process's own made the same text another key in every process (vllm #51875, #54487)."""
    said = []
    for seed in ("0", "1"):
        command = [sys.executable, str(Path(__file__).with_name("decisions.py")), index]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        said.append(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert said[0] == said[1]
    assert said[0].count(b"hit") == 60


# --- what is evicted


def test_what_hits_is_taken_before_anything_is_evicted_for_it(caching):
    """Making room for the rest of a prompt evicted the idle blocks that it had just hit (vllm #33775, #44409,
    #43884). They are needed too: of 16 tokens 8 are idle, so 8 more with 4 left over do not fit."""
    scene = caching(16)
    scene.start(0, TEN[:8])
    scene.release(0)
    scene.start(1, [7] * 4)
    assert not scene.admit(2, [*TEN[:8], *[50] * 5])
    assert not scene.admit(2, [*TEN[:8], 50], leave=4)
    assert scene.start(2, [*TEN[:8], 50]) == 8
    scene.end()


def test_a_hit_that_was_promised_may_be_gone(caching):
    """The number of cached blocks was asked twice, and a table built with the first answer (nano-vllm #211, #233)."""
    scene = caching(16)
    scene.start(0, TEN)
    scene.release(0)
    assert scene.lookup([*TEN, 0]) >= 8
    scene.start(1, [50] * 13)
    left = scene.lookup([*TEN, 0])
    assert left < 8
    scene.release(1)
    assert scene.start(2, [*TEN, 0]) <= left
    scene.end()


def test_what_was_evicted_is_not_found_again(caching):
    """A block kept its old hash when somebody else wrote into it (vllm #4761, #5364)."""
    scene = caching(32)
    scene.start(0, [*range(1, 29)])
    scene.release(0)
    scene.start(1, [90] * 32)
    assert scene.lookup([*range(1, 30)]) == 0
    scene.release(1)
    assert scene.start(2, [*range(1, 30)]) == 0
    scene.end()


def test_a_hit_ends_where_the_chain_is_broken(caching):
    """Blocks behind one that was evicted counted as hits (llm-d-inference-sim #701)."""
    scene, text = caching(64), [*range(1, 25)]
    for seq, length in enumerate((4, 8, 24)):  # so that who came first is in front, for those that go by that
        scene.start(seq, text[:length])
        scene.release(seq)
    hits = [scene.lookup([*text, 0])]
    for seq in range(3, 11):
        scene.start(seq, [40 + seq] * 8)
        hits.append(scene.lookup([*text, 0]))
    first_in_front = caching.name.endswith("fifo")
    at_once = getattr(scene.strategy, "whole_leaves", False)
    assert hits == [24] * 6 + ([0, 0, 0] if first_in_front or at_once else [16, 8, 0])
    scene.end()


@pytest.mark.parametrize("more", [4, 8, 12])
def test_no_more_is_evicted_than_is_short(caching, more):
    """Room for twice what was asked was made by evicting prefixes: the hit rate fell from 97 to 40 percent (sglang
    #32459, #32574). What goes beyond the need, a whole leaf or the next in line, is counted as that."""
    scene = caching(32)
    for seq in range(3):
        scene.start(seq, [50 + seq] * 8)
        scene.release(seq)
    scene.start(3, [60] * 4)
    free, cached = scene.tokens("free"), scene.tokens("cached")
    assert (free, cached) == (4, 24)
    assert scene.admit(4, [70] * more)
    counts = scene.strategy.counts
    assert counts["evicted"] - counts["evicted_beyond_need"] == more - free
    exact = not getattr(scene.strategy, "whole_leaves", False) and not getattr(scene.strategy, "one_queue", False)
    assert not exact or counts["evicted_beyond_need"] == 0
    assert scene.tokens("cached") == cached - counts["evicted"]
    scene.compute(4)
    scene.end()


def test_what_is_said_to_be_cached_is_counted_once_and_can_be_had(caching):
    """Shared pages counted twice as evictable (sglang #35270), and tokens in the middle of a tree that could not go
    before what is behind them (LLMServingSim): the server then took room that was not there."""
    scene, common = caching(64), [*range(1, 9)]
    for seq in range(3):
        scene.start(seq, [*common, *[20 + seq] * 5])
    own = 13 // scene.unit * scene.unit - 8
    expected = [(0, own), (1, 2 * own), (2, 8 + 3 * own)]
    for seq, cached in expected:
        scene.release(seq)
        scene.trial.settle()
        assert scene.tokens("cached") == cached
        honesty.largest_is_exact(scene.trial)
    scene.start(3, [*common, 30])
    assert scene.tokens("cached") == 3 * own, "behind what is in use, and in use"
    scene.fill(10)
    assert scene.tokens("cached") == 0
    scene.end()


def test_clearing_leaves_what_is_in_use_and_what_is_on_its_way(caching):
    """A reset that dropped more than what nobody owns, while copies and sequences were under way (aprender #2014:
    reset and rollback are two things)."""
    scene = caching()
    scene.start(0, TEN)
    scene.start(1, [*[30] * 8, 0])
    scene.release(1)
    assert scene.fork(0, 2, 6)
    assert scene.grow(2, 60)  # copies from a published block, and is not drained
    scene.trial.clear()
    assert scene.tokens("cached") == 0
    scene.compute(2)
    assert scene.lookup([*[30] * 8, 0]) == 0
    assert scene.start(3, [*TEN[:8], 0]) == 8
    scene.end()
