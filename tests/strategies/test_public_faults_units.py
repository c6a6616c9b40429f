"""Faults that others have published, of units and ends: blocks taken for tokens, tables too short, wrong figures.

docs/faults.md lists them all.
"""

from __future__ import annotations

import random

import pytest

from kvlab.engine.capacity import describe
from kvlab.strategies.buddy import Buddy
from kvlab.strategies.growing import Growing
from kvlab.strategies.paged import Paged
from kvlab.strategies.prefix import Prefix
from kvlab.strategies.radix import Radix
from kvlab.strategy import Arrival, Memory, ceil_div

TEN = [*range(1, 11)]


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 7, 16, 19])
@pytest.mark.parametrize("kind", [Paged, Prefix, Radix])
def test_any_block_size_means_the_same_pool(kind, block_size):
    """Sizes that a kernel could not take were found out at run time (flash-attention #828, #1579, #1627, #1720,
    onnxruntime-genai #2568), and one pool had another capacity in blocks of 4 than of 256 (vllm #51163)."""
    memory = Memory(bytes=101 * 48, token_bytes=48, max_len=90, max_seqs=4, chunk=90)
    strategy, tokens = kind(memory, block_size), 101 // block_size * block_size
    assert strategy.usage()[:4] == (0, 0, tokens * 48, min(tokens, 90))
    assert strategy.longest == min(tokens, 90)
    assert strategy.admit(Arrival(0, 90, 90, 90, 90), 90) is not None
    assert sorted(strategy.slots(0, 0, 0, 90).tolist())[-1] < tokens
    assert strategy.usage().held == ceil_div(90, block_size) * block_size * 48


@pytest.mark.parametrize("block_size", [0, -16, 1.5, "16"])
def test_no_other_block_size_is_taken(block_size):
    """The same numbers: it is said at the start, with what is allowed."""
    memory = Memory(bytes=4800, token_bytes=48, max_len=90, max_seqs=4, chunk=90)
    with pytest.raises(ValueError, match=f"block_size={block_size}: allowed is a whole number of slots, 1 or more"):
        Paged(memory, block_size)


@pytest.mark.parametrize("max_len", [29, 32])
def test_the_last_token_lies_in_the_table_and_the_one_after_it_is_refused(anyone, max_len):
    """Tables and last pages were read beyond their ends (flash-attention #2709, #2711, flashinfer #320). One by
    one and by three to a max_len that is no multiple of a block, and to one that is."""
    for step in (1, 3):
        scene = anyone(256, max_len=max_len, chunk=max_len)
        assert scene.strategy.longest == max_len
        scene.start(0, [5] * (max_len % step or step))
        while len(scene.trial.running[0].ids) < max_len:
            assert scene.grow(0, *[7] * step)
            scene.compute(0)
        assert scene.trial.running[0].room >= max_len
        before = scene.strategy.usage()
        if scene.trial.running[0].said == max_len:
            assert not scene.trial.extend(scene.trial.running[0], max_len + 1)
        assert scene.strategy.usage() == before
        entries = ceil_div(max_len, scene.strategy.block_size) if scene.strategy.block_size else 1
        assert len(scene.strategy.table[0]) == entries == scene.strategy.table.data.shape[1]
        scene.end()


def test_a_prompt_of_one_token_and_one_of_all_that_there_is(anyone):
    """The edges of a pool and of a row (inference-sim #963: one that could never fit waited for ever)."""
    for tokens in (33, 47):
        for length in (1, 2, anyone(tokens).strategy.longest):
            scene = anyone(tokens)
            scene.start(0, [5] * length)
            (said,) = scene.release(0)
            scene.start(1, said)  # all of it may be in place
            scene.end()
        strategy = anyone(tokens).strategy
        assert strategy.usage().largest == strategy.longest > 0


HELD = {  # tokens' worth that a setting holds for so many tokens, max_len being 32
    "contiguous": lambda tokens: 32,
    "buddy": lambda tokens: 1 << (tokens - 1).bit_length(),
    "growing_step": lambda tokens: 32,
}


def test_what_is_held_is_what_was_given_and_not_what_was_stored(anyone):
    """Usage was that of other memory, of tokens where blocks were meant, or always 0 (vllm #20302, #15201, #57336,
    LLMServingSim). Of every length, from nothing to full and back."""
    for length in (1, 3, 4, 5, 8, 9, 17):
        scene = anyone(96)
        unit = 4 if scene.strategy.virtual else scene.strategy.block_size or 1
        expected = HELD.get(anyone.name, lambda tokens, unit=unit: ceil_div(tokens, unit) * unit)(length)
        capacity = scene.tokens("free")
        scene.start(0, [5] * length)
        assert (scene.tokens("held"), scene.tokens("cached"), scene.tokens("free")) == (
            expected, 0, capacity - expected,
        )  # fmt: skip
        if len(scene.fill(10)) < 7:
            assert scene.tokens("free") < scene.unit * 32
        scene.release(*list(scene.trial.running))
        scene.trial.settle()
        assert scene.tokens("held") == 0
        scene.end()


def test_a_capacity_that_is_printed_is_that_which_is_there(anyone):
    """An estimate of memory left out nearly half of it (hf-mem #70)."""
    scene = anyone(100)
    said, free = describe(scene.strategy, 48), scene.strategy.usage().free
    assert said["pool_bytes"] == scene.strategy.memory.bytes >= free
    assert said["pool_tokens"] == scene.strategy.memory.bytes // 48
    assert said["longest"] == scene.strategy.longest
    assert scene.start(0, [5] * said["longest"]) == 0


@pytest.mark.parametrize(
    ("make", "joined"),
    [(lambda m: Growing(m, "step", 4), 12), (lambda m: Buddy(m, "first"), 12), (Buddy, 8)],
    ids=["growing", "first fit", "buddy"],
)
def test_free_slots_in_pieces_are_not_free_in_one(make, joined):
    """Requests waited for a run of cells that were free only apart (mesh-llm #652, after llama.cpp #15473). Every
    second of eight rows of 4 has left: 16 slots are free, and the longest arrival is 4 tokens."""
    strategy = make(Memory(bytes=32, token_bytes=1, max_len=32, max_seqs=9, chunk=32))
    for seq in range(8):
        assert strategy.admit(Arrival(seq, 4, 4, 32, 4), 4) is not None
    for seq in range(0, 8, 2):
        strategy.release(seq)
    assert (strategy.usage().free, strategy.usage().largest) == (16, 4)
    assert strategy.admit(Arrival(8, 5, 5, 32, 5), 5) is None
    strategy.release(1)
    assert strategy.usage().largest == joined


def test_rows_that_move_while_others_stay(anyone):
    """Moving what lay scattered mixed up or lost tokens, with as many moves as there happened to be (llama.cpp
    #12253, #14059, #6685, #9314, #10873, #13359): rows that outgrow their place move, in every order."""
    rng = random.Random(0)
    scene = anyone(192, max_seqs=6)
    for seq in range(6):
        if scene.strategy.usage().largest:
            scene.start(seq, [20 + seq] * (1 + seq))
    for step in range(30):
        running = rng.sample(list(scene.trial.running), len(scene.trial.running))
        grew = [seq for seq in running if len(scene.trial.running[seq].ids) < 30 and scene.grow(seq, step)]
        scene.compute(*grew)
        if step % 7 == 6:
            scene.release(running[0])
    scene.end()
