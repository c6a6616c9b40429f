"""Faults that others have published, of admission and preemption: waiting for ever, thrashing, counting twice.

Every shipped setting serves through the scheduler, over a memory that knows what each slot should hold.
docs/faults.md lists them all.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvlab.harness.check import maker
from kvlab.record.summary import output_digest
from kvlab.request import Request
from kvlab.strategies.paged import Paged
from kvlab.testing.memories import Setting

CONF = Path(__file__).parents[2] / "conf" / "strategy"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "vattention_sliced")  # that is the store's
CACHING = [name for name in NAMES if name.startswith(("prefix", "radix"))]


@cache
def making(name):
    return maker([f"strategy={name}", "block_size=4"])


@pytest.fixture
def made(memory):
    """made(name, tokens, ...): that setting, with blocks and page groups of four."""

    def make(name, tokens, **options):
        return making(name)(Setting(name, memory(tokens, group_tokens=4, **options), 4))

    return make


def request(number, prompt, output, *, limit=None, first=0, arrival_s=0.0):
    """Its prompt counts up from `first`."""
    ids = (first + np.arange(prompt, dtype=np.int32)) % 50
    ids.flags.writeable = False
    return Request(number, prompt, output, limit or prompt + output, arrival_s, ids)


def outcomes(engine):
    ended = engine.scheduler.tally.ended
    assert sorted(s.id for s in ended) == [*range(len(ended))], "each request ends once"
    return {s.id: s.outcome for s in ended}


# --- who never runs, and who is waited for


@pytest.mark.parametrize("name", NAMES)
def test_who_can_never_fit_is_refused_at_once_and_holds_nobody_up(made, serve, name):
    """A request larger than the pool stayed at the head of the queue: 173,622 failed attempts (inference-sim #963)."""
    strategy = made(name, 70, max_len=64)
    asked, admit = [], strategy.admit
    strategy.admit = lambda arrival, *terms: asked.append(arrival.seq) or admit(arrival, *terms)
    longest = strategy.longest
    work = [request(0, 3, 4), request(1, 3, longest - 2), request(2, 3, 4), request(3, 3, 4, limit=longest)]
    engine = serve(strategy, work)
    assert outcomes(engine) == {0: "finished", 1: "refused", 2: "finished", 3: "finished"}
    assert 1 not in asked
    assert len(asked) <= 3 * 4


@pytest.mark.parametrize("name", NAMES)
def test_the_last_one_that_runs_reaches_its_end(made, serve, name):
    """Alone and out of memory, a request was retracted, by itself, again and again, or the server stopped (sglang
    #14972, #14942, #14948, #19881): here it reaches `longest`, beside others that give way to it."""
    longest = made(name, 70, max_len=64).longest
    work = [request(number, 2, longest - 2, first=7 * number) for number in range(3)]
    engine = serve(made(name, 70, max_len=64), work)
    assert set(outcomes(engine).values()) == {"finished"}
    assert [len(s.output) for s in engine.scheduler.tally.ended] == [longest - 2] * 3


@pytest.mark.parametrize("name", NAMES)
def test_whoever_asks_may_be_the_one_that_goes(made, serve, name):
    """The newest, which asks last, is preempted for its own growth (vllm's C16), and the loop ends there."""
    strategy = made(name, 48, max_len=40)
    if strategy.longest < 24:
        return
    engine = serve(strategy, [request(number, 6, 18, first=9 * number) for number in range(4)])
    assert set(outcomes(engine).values()) == {"finished"}
    assert engine.scheduler.tally.preemptions <= 4 * 4


class FirstPiece:
    """Admission as it was: what the first launch computes is enough."""

    def __init__(self, chunk):
        self.chunk = chunk

    def terms(self, arrival, running, usage):
        return min(self.chunk, arrival.length), 0


def test_prompts_in_pieces_are_admitted_whole(memory, serve):
    """Admitted by their first piece, long prompts were preempted and came back in turn (vllm #25538). Shown with such
    an admission, and gone where all of the prompt is asked for."""
    work, preempted = [request(number, 30, 1, first=11 * number) for number in range(6)], {}
    for name, options in (("piece", {"admission": FirstPiece(4)}), ("whole", {})):
        engine = serve(Paged(memory(64, chunk=4), 4), work, **options)
        assert set(outcomes(engine).values()) == {"finished"}
        tally = engine.scheduler.tally
        preempted[name] = tally.preemptions, tally.recomputed_tokens
    assert preempted["whole"] == (0, 0)
    assert preempted["piece"][0] >= 4
    assert preempted["piece"][1] >= 30


@pytest.mark.parametrize("name", NAMES)
def test_nobody_waits_while_there_is_room(made, serve, name):
    """After one retraction the estimate of growth stayed so high that nobody was admitted: a 14th of the throughput
    (sglang #26248). Whenever the head of the queue fits, and nobody was preempted in that step, it runs."""
    strategy = made(name, 80, max_len=40)
    limit = min(strategy.longest, 40)
    rng = np.random.default_rng(1)
    work = []
    for number in range(40):
        prompt = int(rng.integers(1, limit // 2))
        work.append(request(number, prompt, int(rng.integers(1, limit - prompt)), first=number, arrival_s=number / 2))
    preemptions = [0]

    def watch(scheduler, launch):
        waiting, usage = scheduler.waiting, strategy.usage()
        preemptions.append(scheduler.tally.preemptions)
        if waiting and scheduler.lanes.spare and preemptions[-1] == preemptions[-2]:
            reserves = name.startswith("buddy") and waiting[0].request.limit > usage.largest
            assert reserves or waiting[0].known >= usage.largest

    engine = serve(strategy, work, watch)
    assert set(outcomes(engine).values()) == {"finished"}


class TooShort:
    """A forecast that everybody outgrows."""

    def expect(self, request):
        return request.prompt_len + 1


@pytest.mark.parametrize(("name", "tokens"), [("growing_exact", 30), ("growing_double", 30), ("buddy", 32)])
def test_room_that_a_copy_still_reads_is_waited_for(made, serve, name, tokens):
    """Room of victims came free later, was not seen, and more were preempted until nobody was left
    (vllm-ascend #16315). Here three rows outgrow their place at once: what their copies read is drained before
    anybody is preempted."""
    strategy = made(name, tokens, max_len=16, max_seqs=4)
    engine = serve(strategy, [request(n, 1, 6, first=n) for n in range(3)], forecast=TooShort())
    assert set(outcomes(engine).values()) == {"finished"}
    assert engine.scheduler.tally.preemptions == 0


class Miser(Paged):
    """Blocks come back when the last sequence has left."""

    kept = ()

    def release(self, seq):
        self.kept = [*self.kept, *self.table.close(seq)]
        if not len(self.table):
            self.free, self.kept = [*self.free, *self.kept], ()

    def usage(self):
        return super().usage()._replace(rounded=len(self.kept) * 4 * 48)


def test_victims_that_give_nothing_back_are_taken_once_each(memory, serve):
    """Retracted sequences whose blocks others shared gave no room, and the loop went on for ever or stopped the server
    (sglang #14972, #14942): here it ends with the one that is alone, which fails, and
    the others come back."""
    engine = serve(Miser(memory(48), 4), [request(number, 10, 12, first=9 * number) for number in range(4)])
    ended = {s.id: (s.outcome, s.preemptions) for s in engine.scheduler.tally.ended}
    assert ended == {0: ("failed", 0), 1: ("failed", 1), 2: ("finished", 2), 3: ("finished", 2)}


class Said:
    """A forecast that was told."""

    def __init__(self, *tokens):
        self.tokens = tokens

    def expect(self, request):
        return self.tokens[request.id]


def test_a_row_that_moves_away_lets_the_next_one_in(made, serve):
    """A stall like sglang #26248, found here: whoever was refused was asked again after a release only, but rows that
    outgrow their place join free slots too. Rows of 5, 10, 8, 12 and 29 slots; the first and the fourth leave in the
    first step, in the third the second moves to where the fourth was, and leaves 15 in one for who waits."""
    strategy = made("buddy_first_fit", 64)
    sizes = ((4, 1), (9, 6), (2, 6), (11, 1), (20, 9), (13, 1))
    work = [request(number, *size, first=9 * number) for number, size in enumerate(sizes)]
    engine = serve(strategy, work, forecast=Said(5, 10, 8, 12, 29, 14))
    ended = {s.id: s for s in engine.scheduler.tally.ended}
    assert set(outcomes(engine).values()) == {"finished"}
    assert engine.scheduler.tally.preemptions == 0
    assert [ended[number].finish_s for number in (1, 2, 4)] == [6.0, 6.0, 9.0]
    assert ended[5].first_token_s == 4.0


# --- what is counted once


@pytest.mark.parametrize("name", NAMES)
def test_preempted_or_not_everybody_gets_the_same_text(made, memory, serve, requests, name):
    """A prefill restarted at 0 over a prefix that was in place (ferrox #37), a table was missing after a hit (ssd #23),
    reuse gave tokens out of range (TensorRT-LLM #2217, #2699); mapped memory without preemption was never merged (vllm
    #6102). Every setting, in a pool that preempts."""
    strategy = made(name, 110, max_len=64, chunk=5)
    work = requests(20, min(64, strategy.longest), seed=2, gap_s=0.3)
    alone = serve(Paged(memory(1000, max_seqs=1), 4), work)
    engine = serve(strategy, work)
    assert output_digest(engine.scheduler.tally.ended) == output_digest(alone.scheduler.tally.ended)
    assert set(outcomes(engine).values()) == {"finished"}


@pytest.mark.parametrize("name", CACHING)
@pytest.mark.parametrize("chunk", [None, 5])
def test_each_token_is_hit_or_computed_once(made, serve, alike, name, chunk):
    """Hits were subtracted from each piece of a prompt (LLMServingSim), and prefixes counted that were not there
    (inference-sim #1057, #1087). What is computed is what is known, but the last token, the hits, and what was lost."""
    strategy = made(name, 110, max_len=64, chunk=chunk)
    engine = serve(strategy, alike(30, 64, seed=1, gap_s=0.5))
    tally = engine.scheduler.tally
    assert (
        engine.executor.computed == sum(s.known - 1 for s in tally.ended) - tally.hit_tokens + tally.recomputed_tokens
    )
    assert 0 < tally.hit_tokens < tally.input_tokens == sum(s.request.prompt_len for s in tally.ended)


@pytest.mark.parametrize("name", CACHING)
def test_a_hit_is_where_the_first_piece_begins_and_counts_in_no_other(made, serve, name):
    """The same, piece by piece: 8 tokens of 21 are in place, and what is left comes in pieces of 4."""
    work, pieces = [request(0, 9, 1), request(1, 21, 1, arrival_s=20.0)], []
    work[1].prompt.flags.writeable = True
    work[1].prompt[8] = 49

    def watch(scheduler, launch):
        if scheduler.lanes.running() == [1]:
            pieces.append((launch.start_B[0], launch.stop_B[0]))

    serve(made(name, 200, chunk=4), work, watch)
    assert pieces == [(8, 12), (12, 16), (16, 20), (20, 21)]


@pytest.mark.parametrize("name", CACHING)
def test_who_comes_back_has_what_the_cache_says(made, serve, alike, name):
    """After a preemption the count of computed tokens and what was stored disagreed (LMCache #1361, #2007, #2158)."""
    strategy = made(name, 90, max_len=64)
    found, admit = {}, strategy.admit

    def judged(arrival, *terms):
        looked, grant = strategy.lookup(arrival), admit(arrival, *terms)
        if grant is not None:
            assert grant.hit == looked
            found.setdefault(arrival.seq, []).append(grant.hit)
        return grant

    strategy.admit = judged
    engine = serve(strategy, alike(25, 64, seed=3, gap_s=0.4))
    assert engine.scheduler.tally.preemptions > 0
    assert max(map(len, found.values())) > 1
    assert {s.id: s.found for s in engine.scheduler.tally.ended} == {seq: hits[-1] for seq, hits in found.items()}


def test_the_first_token_came_when_it_came(memory, serve):
    """Preempted and computed again, a request was given a new time to its first token (LLMServingSim)."""
    work = [request(number, 6, 18, first=9 * number) for number in range(2)]
    engine = serve(Paged(memory(32), 4), work)
    ended = {s.id: s for s in engine.scheduler.tally.ended}
    assert ended[1].preemptions == 1
    assert [ended[number].first_token_s for number in (0, 1)] == [1.0, 1.0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_len", [30, 32])
def test_a_text_may_end_at_the_last_token_that_there_is(made, serve, name, max_len):
    """An extra block at max_len did not fit the table (flash-attention #2709). One token of prompt or of output."""
    work = [
        request(0, 1, max_len - 1), request(1, max_len - 1, 1, first=3), request(2, 1, 1, first=5), request(3, 9, 1),
    ]  # fmt: skip
    engine = serve(made(name, 256, max_len=max_len, chunk=7), work)
    assert set(outcomes(engine).values()) == {"finished"}
    assert {s.id: s.known for s in engine.scheduler.tally.ended} == {0: max_len, 1: max_len, 2: 2, 3: 10}
