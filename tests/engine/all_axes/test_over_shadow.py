"""Every axis, strategy and size at random, over a memory that remembers prefixes: whatever is set, every run ends well.

The token after a prefix is a function of it (and of the sample's number), so what each request makes alone is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from kvlab.engine.engine import Engine
from kvlab.engine.sequence import BRANCH_BITS, Sequence, Tokens
from kvlab.request import Request
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategy import Strategy, ceil_div

VOCAB = 50


def steps_at_most(life) -> int:
    """So many steps a run can take.

    A launch computes a token at least, and a sequence computes fewer than `limit` of them between two preemptions, of
    which it has `max_preemptions`. A search has at most `beams` sequences for each output position. A step without a
    launch preempts or fails somebody, or waits for an arrival.
    """
    most = 0
    for request in life.requests:
        sequences = request.beams * (request.limit - request.prompt_len) or request.n
        leaves = sequences * (life.options["max_preemptions"] + 1)
        most += leaves * request.limit + leaves + 1
    return most


def sample_alone(shadow, request: Request, branch: int, eos: tuple[int, ...]) -> list[int]:
    ids = request.prompt.tolist()
    while len(ids) < (request.final or request.limit):
        link = shadow.chain(np.array(ids, np.int32), request.space)[-1]
        ids.append((int(link[:8], 16) + branch) % VOCAB)
        if request.final is None and ids[-1] in eos:
            break
    return ids[request.prompt_len :]


def search_alone(shadow, request: Request, eos: tuple[int, ...], penalty: float) -> list[list[int]]:
    """A plain beam search, the best output first."""
    width, end, prompt = request.beams, request.final or request.limit, request.prompt_len
    eos = eos if request.final is None else ()

    def value(beam: tuple[list[int], float]) -> float:
        return beam[1] / (len(beam[0]) - prompt) ** penalty

    beams, done = [(request.prompt.tolist(), 0.0)], []
    while True:
        grown = []
        for ids, score in beams:
            link = shadow.chain(np.array(ids, np.int32), request.space)[-1]
            tokens, logprobs = shadow.likely(link, 2 * width)
            grown += [([*ids, int(token)], score + logprob) for token, logprob in zip(tokens, logprobs, strict=True)]
        grown.sort(key=lambda beam: -beam[1])
        beams = [beam for beam in grown if beam[0][-1] not in eos][:width]
        last = grown.index(beams[-1]) if len(beams) == width else len(grown)
        ended = [beam for beam in grown[: min(2 * width, last)] if beam[0][-1] in eos]
        done = sorted(done + ended, key=lambda beam: -value(beam))[:width]
        over = not beams or (len(done) == width and value(beams[0]) <= value(done[-1]))
        if over or len(beams[0][0]) >= end:
            done = sorted(done + beams, key=lambda beam: -value(beam))[:width]
            return [ids[prompt:] for ids, _ in done]


def alone(shadow, life, request: Request) -> list[list[int]]:
    """The outputs of a request that nothing else is run beside."""
    eos = life.options["eos"]
    if request.beams:
        return search_alone(shadow, request, eos, life.options["length_penalty"])
    return [sample_alone(shadow, request, branch, eos) for branch in range(request.n)]


def refused(life, request: Request) -> bool:
    strategy = life.strategy
    return request.limit > strategy.longest or max(request.n, request.beams) > strategy.memory.max_seqs


def may_fail(life, request: Request, reason: str) -> bool:
    """Whether a request may fail so in this life.

    Who gives way comes back, and somebody always goes on (but where the largest gives way: two prompts may send each
    other away in turns). So a request fails only if it was preempted too often, or is a search too wide for the pool.
    """
    if life.chosen["preemption"] == "none":
        return not reserves(life)
    if request.beams > 1 and not surely_fits(life.strategy, request):
        return True
    most = life.options["max_preemptions"]
    too_often = f"engine.max_preemptions={most} " in reason
    return too_often and (most < 1000 or life.chosen["victim"] == "most_blocks")


def reserves(life) -> bool:
    """Whether admission leaves everybody room up to its limit, where rows need no room beside their own to grow."""
    strategy, several = life.strategy, any(request.n > 1 or request.beams > 1 for request in life.requests)
    in_place = strategy.block_size is not None or strategy.virtual or life.name == "contiguous"
    return life.chosen["admission"] == "reserve_max_tokens" and in_place and not several


def surely_fits(strategy: Strategy, request: Request) -> bool:
    """Whether all beams of a search fit, each as long as it may become, and a block more to copy into."""
    width, limit, memory = max(request.beams, 1), request.limit, strategy.memory
    if strategy.virtual:
        return memory.bytes // memory.page_group_bytes >= width * memory.page_groups(limit)
    if isinstance(strategy, Contiguous):
        return strategy.rows >= width
    if strategy.block_size is None:
        return False  # rows that grow need room beside their own
    blocks = (strategy.usage().free + strategy.usage().cached) // (strategy.block_size * memory.token_bytes)
    return blocks > width * ceil_div(limit, strategy.block_size)


def check_end(life, engine: Engine) -> None:
    """Nobody is left anywhere, neither in memory nor on the host nor in the books."""
    scheduler, strategy = engine.scheduler, life.strategy
    assert strategy.usage().held == 0
    assert strategy.host_held() == 0
    assert not strategy.host.kept
    assert not len(strategy.table)
    assert not len(scheduler.lanes)
    assert not scheduler.waiting
    assert not scheduler.arrivals
    assert scheduler.siblings.families == 0
    assert scheduler.tally.num_ended == len(life.requests)


def check_outcomes(shadow, life, engine: Engine) -> None:
    ended: dict[int, list[Sequence]] = defaultdict(list)
    for sequence in engine.scheduler.tally.ended:
        ended[sequence.request.id].append(sequence)
        assert sequence.preemptions <= life.options["max_preemptions"]
    for request in life.requests:
        mine = sorted(ended[request.id], key=lambda one: one.branch)
        outcomes = {one.outcome for one in mine}
        assert ("refused" in outcomes) == refused(life, request)
        for one in mine:
            assert bool(one.reason) == (one.outcome in ("refused", "failed"))
        if "failed" in outcomes:
            reasons = {one.reason for one in mine if one.outcome == "failed"}
            assert all(may_fail(life, request, reason) for reason in reasons), (request.id, reasons)
        elif outcomes == {"finished"}:
            assert [one.output.tolist() for one in mine] == alone(shadow, life, request)


def tape(shadow, life) -> Tokens:
    """What samples say, token by token; 0 behind their end."""

    @cache
    def said(id: int) -> list[int]:
        request = life.requests[id & (1 << BRANCH_BITS) - 1]
        return [*request.prompt.tolist(), *sample_alone(shadow, request, id >> BRANCH_BITS, life.options["eos"])]

    def token(id: int, position: int) -> int:
        return said(id)[position] if position < len(said(id)) else 0

    return lambda id_N, position_N: np.array(list(map(token, id_N.tolist(), position_N.tolist())), np.int32)


def live(serve: Callable[..., Engine], shadow, life) -> Engine:
    speculation = life.drafts.by(tape(shadow, life))
    engine = serve(life.strategy, life.requests, most=steps_at_most(life), speculation=speculation, **life.options)
    check_end(life, engine)
    check_outcomes(shadow, life, engine)
    return engine


def lives(serve, shadow, life, seeds: range, **how) -> None:
    for seed in seeds:
        one = life(seed, **how)
        try:
            live(serve, shadow, one)
        except AssertionError as error:
            raise AssertionError(f"life({seed}, **{how}): {one}") from error


@pytest.mark.parametrize("tens", range(30))
def test_every_run_ends_well(serve, shadow, life, tens: int) -> None:
    lives(serve, shadow, life, range(10 * tens, 10 * tens + 10))


def test_a_search_whose_other_beams_have_left_as_often_as_they_may(serve, shadow, life) -> None:
    """The victim's own count was looked at alone, so its siblings were preempted once more than is allowed."""
    lives(serve, shadow, life, range(1087, 1088), families=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("families", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("hundreds", range(10, 14))
def test_every_run_of_a_thousand_ends_well(serve, shadow, life, hundreds: int, families: float) -> None:
    """families: the share of lives with requests of several sequences."""
    lives(serve, shadow, life, range(100 * hundreds, 100 * hundreds + 100), families=families)
