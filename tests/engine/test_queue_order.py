"""Who is next: requests that share a prefix one after another, whoever came first, and the same tokens either way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvlab.record.summary import output_digest
from kvlab.request import Request
from kvlab.strategies.paged import Paged
from kvlab.strategies.radix import Radix

PREFIX, TAIL, OUTPUT = 20, 4, 2


def two_families(count: int) -> list[Request]:
    """Requests of two prefixes in turn, all there at the start."""
    prefixes = np.random.default_rng(0).integers(50, size=(2, PREFIX))
    made = []
    for id in range(count):
        prompt = np.concatenate([prefixes[id % 2], np.full(TAIL, id)]).astype(np.int32)
        made.append(Request(id, len(prompt), OUTPUT, len(prompt) + OUTPUT, 0.0, prompt))
    return made


def order(engine) -> list[int]:
    return [s.id for s in sorted(engine.scheduler.tally.ended, key=lambda s: s.first_token_s)]


@pytest.fixture
def one_at_a_time(memory):
    """Room for one request and no more: whatever does not share its prefix is evicted."""
    return lambda: Radix(memory(PREFIX + TAIL + OUTPUT, max_seqs=4), 1)


def test_first_come_first_served_computes_each_prefix_again(one_at_a_time, serve):
    engine = serve(one_at_a_time(), two_families(8))
    assert order(engine) == list(range(8))
    assert engine.scheduler.tally.hit_tokens == 0


def test_longest_prefix_first_computes_each_prefix_once(one_at_a_time, serve):
    engine = serve(one_at_a_time(), two_families(8), queue="longest_prefix")
    assert order(engine) == [0, 2, 4, 6, 1, 3, 5, 7]
    assert engine.scheduler.tally.hit_tokens == 6 * PREFIX


def test_a_higher_priority_still_goes_before(one_at_a_time, serve):
    made = [replace(request, priority=int(request.id == 5)) for request in two_families(6)]
    assert order(serve(one_at_a_time(), made, queue="longest_prefix")) == [5, 1, 3, 0, 2, 4]


def test_who_comes_later_may_go_before_one_that_was_refused(one_at_a_time, serve):
    """The head of the queue is asked again only after a change: somebody else at the head is one."""
    first, other, kin = (replace(request, id=id) for id, request in enumerate(two_families(3)))
    made = [first, other, replace(kin, arrival_s=0.5)]
    assert order(serve(one_at_a_time(), made, queue="longest_prefix")) == [0, 2, 1]


@pytest.mark.parametrize("tokens", [110, 1000])
def test_tokens_are_the_same_in_either_order(make_any, memory, requests, serve, tokens):
    made = [replace(request, n=1 + request.id % 3) for request in requests(20, 40, seed=3, gap_s=0.5)]
    runs = [
        serve(make_any(memory(tokens)), made, queue=queue, max_preemptions=1000)
        for queue in ("arrival", "longest_prefix")
    ]
    assert all(one.outcome == "finished" for run in runs for one in run.scheduler.tally.ended)
    assert len({output_digest(run.scheduler.tally.ended) for run in runs}) == 1


def test_without_a_cache_it_is_the_order_of_arrival(memory, requests, serve):
    runs = [
        serve(Paged(memory(100), 4), requests(20, 64, seed=1), queue=queue) for queue in ("arrival", "longest_prefix")
    ]
    ends = [[(s.id, s.finish_s) for s in run.scheduler.tally.ended] for run in runs]
    assert ends[0] == ends[1]
