"""Strategies and scheduler together over a memory that knows what each slot should hold."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.record.accounting import AccountingError
from kvlab.record.summary import output_digest
from kvlab.request import Request
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.paged import Paged
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Arrival


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chunk", [None, 5, 1])
@pytest.mark.parametrize("tokens", [64, 130, 1000])
def test_every_token_is_where_the_table_says(make_strategy, memory, requests, serve, seed, chunk, tokens):
    strategy = make_strategy(memory(tokens, chunk=chunk))
    engine = serve(strategy, requests(30, 64, seed, gap_s=1.5 * (seed % 2)))
    ended = engine.scheduler.tally.ended
    assert sorted(s.id for s in ended) == list(range(30))
    assert all(s.outcome == "finished" and len(s.output) == s.request.output_len for s in ended)
    assert strategy.usage().held == 0


@pytest.mark.parametrize("group_tokens", [1, 2.5, 8, 11 / 3, 100])
def test_page_groups_need_not_hold_whole_tokens(memory, requests, serve, group_tokens):
    strategy = VAttention(memory(230, group_tokens=group_tokens))
    engine = serve(strategy, requests(25, 64, seed=3))
    assert all(s.outcome == "finished" for s in engine.scheduler.tally.ended)
    assert strategy.usage().held == 0


def test_outputs_do_not_depend_on_the_strategy_or_the_batch(memory, requests, serve):
    """Tiny pools preempt; what a request gets must be what it gets alone."""
    work = requests(24, 64, seed=5)
    alone = serve(Paged(memory(1000, max_seqs=1), 4), work)
    digests, preemptions = {output_digest(alone.scheduler.tally.ended)}, 0
    for make in (Contiguous, lambda m: Paged(m, 4), VAttention):
        engine = serve(make(memory(100)), work)
        digests.add(output_digest(engine.scheduler.tally.ended))
        preemptions += engine.scheduler.tally.preemptions
    assert len(digests) == 1
    assert preemptions > 5


def test_first_come_first_served_and_the_oldest_survive(memory, requests, serve):
    engine = serve(Paged(memory(100), 4), requests(30, 64, seed=1))
    tally = engine.scheduler.tally
    assert tally.preemptions > 0
    assert tally.recomputed_tokens > 0
    starts = [s.first_token_s for s in sorted(tally.ended, key=lambda s: s.id)]
    assert starts == sorted(starts)


def test_a_request_that_can_never_fit_is_refused_and_the_run_goes_on(memory, serve):
    strategy = Paged(memory(40, max_len=64), 4)
    fits, never = (Request(i, 3, 4, limit, 0.0, np.arange(3, dtype=np.int32)) for i, limit in ((0, 40), (1, 41)))
    engine = serve(strategy, [fits, never])
    outcomes = {s.id: (s.outcome, s.reason) for s in engine.scheduler.tally.ended}
    assert outcomes[0] == ("finished", "")
    assert outcomes[1] == ("refused", "may grow to 41 tokens, longest here is 40")


def test_a_lone_sequence_that_cannot_grow_fails_with_a_reason_and_the_run_goes_on(memory, serve):
    """A strategy that promises more than it holds must not hang the run."""

    class Boaster(Paged):
        longest = 64

    engine = serve(Boaster(memory(16), 4), [Request(i, 10, 20, 30, 0.0, np.arange(10, dtype=np.int32)) for i in (0, 1)])
    for sequence in engine.scheduler.tally.ended:
        assert sequence.outcome == "failed"
        assert "could not grow from 16 to 17" in sequence.reason


def test_who_was_preempted_does_not_wait_for_the_next_arrival(memory, serve):
    """Where a step preempted one sequence and failed the other, the clock jumped to the next arrival."""

    class Stubborn(Paged):
        def extend(self, seq, length, upto):
            return super().extend(seq, length, upto) if seq else None

    work = [Request(i, 8, 4, 16, 100.0 * (i == 2), np.arange(8, dtype=np.int32)) for i in range(3)]
    engine = serve(Stubborn(memory(32), 4), work)
    ended = {s.id: (s.outcome, s.finish_s) for s in engine.scheduler.tally.ended}
    assert ended == {0: ("failed", None), 1: ("finished", 4.0), 2: ("finished", 104.0)}


def test_room_that_is_never_given_back_fails_the_run(memory, requests, serve):
    class Leaking(Paged):
        def release(self, seq):
            if seq:
                super().release(seq)

    with pytest.raises(AccountingError, match="every sequence has left and 192 bytes are still held"):
        serve(Leaking(memory(1000), 4), [Request(0, 2, 2, 64, 0.0, np.zeros(2, np.int32))])


@pytest.mark.parametrize("chunk", [None, 5, 1])
def test_recomputed_tokens_are_those_computed_twice(memory, requests, serve, chunk):
    """Also of sequences that are thrown out again before they are back where they were."""
    engine = serve(Paged(memory(64, chunk=chunk), 4), requests(30, 64, seed=1))
    tally, computed = engine.scheduler.tally, engine.executor.computed
    assert tally.preemptions > 3
    assert tally.recomputed_tokens == computed - sum(s.known - 1 for s in tally.ended)


@pytest.mark.parametrize("chunk", [None, 5, 1])
def test_a_cache_is_told_of_every_prompt_as_it_is_stored(memory, requests, serve, chunk):
    """Pieces of one token were left out: a prompt's last, and with chunk=1 the whole prompt."""
    told = {}

    class Told(Paged):
        def wrote(self, seq, length, ids):
            assert len(ids) == length
            assert not ids.flags.writeable
            told.setdefault(seq, []).append(length)

    work = requests(10, 64, seed=1)
    serve(Told(memory(1000, chunk=chunk), 4), work)
    for request in work:
        step = chunk or request.prompt_len
        pieces = [*range(step, request.prompt_len, step), request.prompt_len]
        assert set(pieces) <= set(told[request.id])
        assert told[request.id][-1] == request.final - 1


def test_generation_stops_at_end_of_text_but_a_trace_does_not(memory, serve):
    prompt = np.arange(5, dtype=np.int32)
    open_ended, traced = Request(0, 5, None, 60, 0.0, prompt), Request(1, 5, 40, 60, 0.0, prompt)
    engine = serve(Paged(memory(1000), 4), [open_ended, traced], eos=tuple(range(10)))
    free, fixed = sorted(engine.scheduler.tally.ended, key=lambda s: s.id)
    assert free.output[-1] < 10
    assert all(free.output[:-1] >= 10)
    assert len(fixed.output) == 40
    assert fixed.output[: len(free.output)].tolist() == free.output.tolist()


def test_a_decode_step_asks_only_sequences_whose_room_is_used_up(memory, serve):
    calls = []

    class Counting(Paged):
        def extend(self, seq, length, upto):
            calls.append((seq, length))
            return super().extend(seq, length, upto)

    serve(Counting(memory(1000), 8), [Request(0, 1, 40, 64, 0.0, np.zeros(1, np.int32))])
    assert calls == [(0, length) for length in (8, 16, 24, 32)]


def test_released_rows_are_handed_on_still_mapped(memory, serve):
    """Equal requests one after the other: the second needs not one new mapping."""
    strategy = VAttention(memory(1000, max_seqs=1))
    one = serve(strategy, [Request(0, 20, 20, 64, 0.0, np.zeros(20, np.int32))])
    mapped = len(one.executor.memory.ever)
    assert mapped == strategy.memory.page_groups(39)
    strategy.moves.clear()
    grant = strategy.admit(arrival(9, 20), 20)
    assert strategy.extend(9, 20, 39) >= 39
    assert grant.room >= 20
    assert strategy.drain() == []


def arrival(seq: int, length: int) -> Arrival:
    return Arrival(seq, length, length, 64, 64)


def test_the_best_fitting_row_is_handed_on_and_theft_takes_from_the_idle(memory):
    strategy = VAttention(memory(80, group_tokens=8))  # ten page groups
    for seq, length in ((0, 40), (1, 16)):
        assert strategy.admit(arrival(seq, length), length)
    strategy.release(0)
    strategy.release(1)
    strategy.drain()
    strategy.admit(arrival(2, 10), 10)  # fits the row of two groups
    assert strategy.drain() == []
    strategy.admit(arrival(3, 60), 60)  # eight groups: the row of five, and three that nobody has
    assert [type(move).__name__ for move in strategy.drain()] == ["Map"] * 3
    strategy.release(3)
    strategy.admit(arrival(4, 1), 1)  # takes the idle row of eight: holds one, seven stay mapped under it
    assert strategy.drain() == []
    strategy.admit(arrival(5, 50), 50)  # nothing is idle or unmapped: the seven are taken from under a live row
    assert [type(move).__name__ for move in strategy.drain()] == ["Unmap", "Map"] * 7
    assert strategy.extend(2, 16, 17) is None


def test_no_more_sequences_than_max_seqs(make_strategy, memory):
    """contiguous gave out a row and then had no table for it."""
    strategy = make_strategy(memory(1000, max_seqs=2))
    assert all(strategy.admit(arrival(seq, 5), 5) for seq in (0, 1))
    assert strategy.usage().largest == 0
    assert strategy.admit(arrival(2, 5), 5) is None


@pytest.mark.parametrize("block_size", [0, -1, 2.5])
def test_wrong_block_sizes_are_refused(memory, block_size):
    with pytest.raises(ValueError, match="block_size=.*whole number of slots"):
        Paged(memory(100), block_size)


def test_unknown_and_repeated_sequences_are_errors(make_strategy, memory):
    strategy = make_strategy(memory(1000))
    strategy.admit(arrival(1, 5), 5)
    with pytest.raises(KeyError):
        strategy.admit(arrival(1, 5), 5)
    with pytest.raises(KeyError):
        strategy.extend(2, 5, 6)
    strategy.release(1)
    with pytest.raises(KeyError):
        strategy.release(1)
    assert strategy.usage().held == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chunk", [None, 3])
def test_prompts_that_begin_alike_are_shared_and_outputs_stay_the_same(make_caching, memory, alike, serve, seed, chunk):
    """Pools that preempt and evict. A hit on what was not computed yet would show in the outputs (nano-vllm #208)."""
    work = alike(30, 64, seed, gap_s=0.5)
    alone = serve(Paged(memory(1000, max_seqs=1), 4), work)
    strategy = make_caching(memory(110, chunk=chunk))
    engine = serve(strategy, work)
    assert output_digest(engine.scheduler.tally.ended) == output_digest(alone.scheduler.tally.ended)
    assert engine.scheduler.tally.hit_tokens > 30
    assert strategy.counts["evicted"] > 0
    assert any(row.cached for row in engine.recorder.rows)


def test_time_that_a_preemption_takes_lies_between_two_tokens(memory, requests, serve) -> None:
    """The clock counts steps: whoever never gave way gets a token a step, the others have one longer gap each."""
    engine = serve(Paged(memory(100), 4), requests(8, 60, seed=1))
    tally = engine.scheduler.tally
    spread = tally.gaps.spread()
    outputs = sum(len(one.output) - 1 for one in tally.ended)
    decoding = sum(one.finish_s - one.first_token_s for one in tally.ended)
    assert tally.preemptions > 0
    assert spread["max"] > 1.5
    assert spread["p50"] == pytest.approx(1.0, rel=0.01)
    assert spread["mean"] == pytest.approx(decoding / outputs)
