"""What each admission asks for, beside whom, and that those who reserve never run out."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.engine.axes import (
    FirstChunk,
    FullPrompt,
    NewTokenRatio,
    PastFuture,
    PromptPlusOne,
    ReserveMaxTokens,
    TruePeak,
    Watermark,
    unit_bytes,
)
from kvlab.strategies.paged import Paged
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Memory

RESERVING = {
    "full_prompt": FullPrompt(4), "watermark": Watermark(0.5), "reserve_max_tokens": ReserveMaxTokens(),
    "new_token_ratio": NewTokenRatio(), "past_future": PastFuture(), "oracle": TruePeak(),
}  # fmt: skip


@pytest.mark.parametrize("name", RESERVING)
def test_who_is_alone_waits_for_nobody(name, running, arrival, usage):
    """A share kept free, or a limit beyond the pool's rounding, would keep a sequence waiting that nobody stops."""
    new, leave = RESERVING[name].terms(arrival(90, 100), running(), usage(100, 100))
    assert leave == 0
    assert 0 < new <= 90


def test_a_prompt_and_one_more_must_fit(running, arrival, usage):
    admission = PromptPlusOne()
    assert admission.terms(arrival(30, 90), running((5, 5, 90, 8)), usage(90, 31)) == (30, 0)
    assert admission.terms(arrival(30, 90), running((5, 5, 90, 8)), usage(90, 30)) is None


@pytest.mark.parametrize(
    ("chunk", "budget", "new"), [(None, None, 30), (8, None, 8), (None, 12, 12), (8, 12, 8), (64, None, 30)]
)
def test_the_first_chunk_is_what_one_launch_computes(chunk, budget, new, running, arrival, usage):
    admission = FirstChunk(chunk, budget)
    assert admission.terms(arrival(30, 90), running((5, 5, 90, 8)), usage(90, 9)) == (new, 0)


def test_a_full_prompt_leaves_room_for_its_rest_and_that_of_others(running, arrival, usage):
    """vllm #25538: two long prompts, of which the first chunks fit, throw each other out for ever."""
    under_way = running((40, 40, 90, 8), (20, 10, 90, 20))
    assert FullPrompt(8).terms(arrival(30, 90), under_way, usage(100, 72)) == (8, 22 + 32)


def test_a_watermark_is_whole_blocks_of_the_pool(running, arrival, usage):
    under_way = running((5, 5, 90, 8), block=4)
    assert Watermark(0.1).terms(arrival(30, 90), under_way, usage(100, 50)) == (30, 8)  # of 25 blocks 2.5


def test_reserving_leaves_what_limits_may_take(running, arrival, usage):
    under_way = running((9, 5, 90, 12), (5, 5, 50, 60))
    assert ReserveMaxTokens().terms(arrival(30, 95), under_way, usage(300, 200)) == (30, 78 + 65)


def test_what_is_left_is_counted_in_blocks(running, arrival, usage):
    """Each sequence's last block is its own: tokens alone would promise the same block twice."""
    under_way = running((5, 5, 9, 8), (5, 5, 9, 8), block=8)
    assert ReserveMaxTokens().terms(arrival(7, 9), under_way, usage(64, 48)) == (7, 8 + 8 + 8)


def test_the_ratio_falls_with_steps_and_counts_the_arrival_whole(running, arrival, usage):
    admission = NewTokenRatio(start=0.5, lowest=0.2, steps=10, clip=100)
    under_way = running((20, 20, 60, 20), (10, 10, 5000, 10))
    assert admission.terms(arrival(30, 80), under_way, usage(900, 800)) == (30, 20 + 50 + 50)
    for _ in range(5):
        admission.stepped()
    assert admission.terms(arrival(30, 80), under_way, usage(900, 800)) == (30, int(140 * 0.3) + 50)
    for _ in range(50):
        admission.stepped()
    assert admission.terms(arrival(30, 80), under_way, usage(900, 800)) == (30, int(140 * 0.1) + 50)


def test_the_ratio_rises_after_a_preemption_and_starts_again_when_nobody_runs(running, arrival, usage):
    admission = NewTokenRatio(start=0.5, lowest=0.2, steps=1, headroom=10)
    under_way = running((60, 20, 120, 64))
    admission.stepped()
    assert admission.terms(arrival(30, 40), under_way, usage(900, 800)) == (30, 6 + 10)
    admission.retracted()
    assert admission.terms(arrival(30, 40), under_way, usage(900, 800)) == (30, 30 + 10)  # 40 + 10 of 100
    admission.stepped()
    admission.terms(arrival(30, 40), running(), usage(900, 800))
    assert admission.terms(arrival(30, 40), under_way, usage(900, 800)) == (30, 30 + 10)


def test_a_preemption_never_lowers_the_ratio(running, arrival, usage):
    admission = NewTokenRatio(start=0.5, headroom=0)
    admission.retracted()
    assert admission.terms(arrival(30, 40), running((21, 20, 120, 64)), usage(900, 800)) == (30, 49 + 10)


def test_a_peak_is_not_the_sum_of_all_ends(running, arrival, usage):
    """One is done after 10 steps, and gives back 30 before the others need them."""
    under_way = running((20, 10, 900, 20), (20, 10, 900, 20), expected=[30, 70])
    new, leave = TruePeak().terms(arrival(10, 900, expected=60), under_way, usage(900, 800))
    assert (new, leave) == (10, 80)  # 50 now; 80 after 10 steps, 70 + 60 after 50; all ends together are 160


@pytest.mark.parametrize("block", [1, 4, 16])
def test_a_true_peak_is_what_a_replay_holds(block, running, arrival, usage):
    """Against steps taken one by one: the least that may be left, and no less."""
    draw = np.random.default_rng(block)
    for _ in range(50):
        known = draw.integers(1, 60, 6)
        final = known + draw.integers(1, 60, 6)
        room = -(-known // block) * block
        rows = list(zip(known[:5], known[:5], [200] * 5, room[:5], strict=True))
        under_way = running(*rows, expected=final[:5], block=block)
        _, leave = TruePeak().terms(arrival(int(known[5]), 200, expected=int(final[5])), under_way, usage(900, 800))
        steps = [
            sum(-(-(now + step) // block) * block for now, end in zip(known, final, strict=True) if now + step <= end)
            for step in range(61)
        ]
        assert leave == max(steps) - room.sum()


def test_before_outputs_are_known_the_limits_count(running, arrival, usage):
    admission = PastFuture(least=2)
    admission.finished(5, 100)
    under_way = running((20, 10, 100, 20))
    assert admission.terms(arrival(10, 100), under_way, usage(900, 800)) == (10, 160)  # 80 steps for both


def test_past_outputs_make_the_peak_smaller_and_a_longer_one_counts_its_limit(running, arrival, usage):
    admission = PastFuture(least=2)
    for _ in range(5):
        admission.finished(30, 100)
    expected = admission.terms(arrival(10, 100), running((20, 10, 100, 20)), usage(900, 800))
    assert expected == (10, 40)  # both grow for 20 steps, until one has its 30
    outgrown = admission.terms(arrival(10, 100), running((50, 10, 100, 50)), usage(900, 800))
    assert outgrown == (10, 60)  # 30 steps for the arrival, in which the other grows as well, towards its limit


def test_sequences_draw_from_the_whole_history_and_always_the_same(running, arrival, usage):
    admission = PastFuture(least=1)
    for output in range(1, 101):
        admission.finished(output, 1000)
    finals = [admission._final(seq, 10, 10, 10000) - 10 for seq in range(100)]
    assert finals == [admission._final(seq, 10, 10, 10000) - 10 for seq in range(100)]
    assert sorted(finals)[::10] == pytest.approx(range(1, 101, 10), abs=2)
    assert all(admission._final(seq, 70, 10, 10000) > 70 for seq in range(100))


def test_memory_is_handed_out_in_blocks_page_groups_or_tokens():
    memory = Memory(bytes=4800, token_bytes=48, max_len=64, max_seqs=4, chunk=64, page_group_bytes=400)
    assert [unit_bytes(Paged(memory, 4)), unit_bytes(VAttention(memory))] == [192, 400]
