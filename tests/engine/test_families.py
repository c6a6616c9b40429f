"""Requests of several sequences: samples and beams make what they would make alone, however memory is shared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvlab.engine.sequence import BRANCH_BITS
from kvlab.request import Request

VOCAB = 50


@pytest.fixture
def sample_alone(shadow):
    """Tokens of one sample, made one by one."""
    return lambda request, branch: _sample_alone(shadow, request, branch)


@pytest.fixture
def search_alone(shadow):
    """A plain beam search over the same candidates: the outputs with their scores, the best first."""
    return lambda request: _search_alone(shadow, request)


def _sample_alone(shadow, request: Request, branch: int) -> list[int]:
    ids = request.prompt.tolist()
    while len(ids) < request.final:
        ids.append((int(shadow.chain(np.array(ids, np.int32))[-1][:8], 16) + branch) % VOCAB)
    return ids[request.prompt_len :]


def _search_alone(shadow, request: Request) -> list[tuple[list[int], float]]:
    beams, width = [(request.prompt.tolist(), 0.0)], request.beams
    while len(beams[0][0]) < request.final:
        grown = []
        for ids, score in beams:
            tokens, logprobs = shadow.likely(shadow.chain(np.array(ids, np.int32))[-1], 2 * width)
            grown += [([*ids, int(token)], score + logprob) for token, logprob in zip(tokens, logprobs, strict=True)]
        beams = sorted(grown, key=lambda beam: -beam[1])[:width]
    return [(ids[request.prompt_len :], score) for ids, score in beams]


def outputs(engine, request: Request) -> list[list[int]]:
    mine = [one for one in engine.scheduler.tally.ended if one.request is request]
    assert all(one.outcome == "finished" for one in mine), [(one.outcome, one.reason) for one in mine]
    return [one.output.tolist() for one in sorted(mine, key=lambda one: one.branch)]


@pytest.mark.parametrize("tokens", [70, 110, 1000])
@pytest.mark.parametrize("fork", [True, False])
def test_samples_are_those_of_sequences_alone(
    make_any, memory, requests, serve, sample_alone, tokens: int, fork: bool
) -> None:
    strategy = make_any(memory(tokens))
    made = [replace(request, n=1 + request.id % 4) for request in requests(8, 40, seed=3, gap_s=2.0)]
    engine = serve(strategy, made, fork=fork)
    for request in made:
        assert outputs(engine, request) == [sample_alone(request, branch) for branch in range(request.n)]
    assert engine.scheduler.tally.num_ended == len(made)
    assert not (engine.scheduler.tally.forks and not fork)


@pytest.mark.parametrize("tokens", [200, 400, 1000])
def test_beams_are_those_of_a_plain_search(make_any, memory, requests, serve, search_alone, tokens: int) -> None:
    strategy = make_any(memory(tokens))
    made = [replace(request, beams=(0, 2, 3)[request.id % 3]) for request in requests(9, 30, seed=5, gap_s=3.0)]
    engine = serve(strategy, made, max_preemptions=1000)
    for request in made:
        if request.beams:
            assert outputs(engine, request) == [output for output, _ in search_alone(request)]


def test_a_search_that_cannot_fit_fails_and_the_others_finish(memory, requests, serve) -> None:
    """Beams stand still until all of them can go on: without a way out the run would never end."""
    from kvlab.strategies.contiguous import Contiguous

    first, *others = requests(5, 40, seed=1)
    engine = serve(Contiguous(memory(150)), [replace(first, beams=4), *others])
    outcomes = {one.request.id: one.outcome for one in engine.scheduler.tally.ended}
    assert outcomes == {0: "failed"} | {request.id: "finished" for request in others}


def test_samples_share_the_blocks_of_their_prompt(memory, serve) -> None:
    """A prompt of 33 tokens in blocks of 4: eight blocks shared by all four, the ninth copied for three of them."""
    from kvlab.strategies.paged import Paged

    prompt = np.arange(33, dtype=np.int32)
    held = {}
    for fork in (True, False):
        strategy = Paged(memory(1000), 4)
        engine = serve(strategy, [Request(0, 33, 10, 64, 0.0, prompt, n=4)], fork=fork)
        held[fork] = max(step.held for step in engine.recorder.rows) // (4 * strategy.memory.token_bytes)
    assert held == {True: 8 + 4 * 3, False: 4 * 11}  # 42 tokens are stored in the end


def test_ids_of_sequences_tell_their_request() -> None:
    from kvlab.engine.sequence import Family

    family = Family(Request(7, 4, 4, 8, n=3))
    assert [family.make(4).id for _ in range(3)] == [7, 7 + (1 << BRANCH_BITS), 7 + (2 << BRANCH_BITS)]
