"""What the property test has found, each made small."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvlab.engine.axes import FullPrompt, Never, ReserveMaxTokens, Swap
from kvlab.engine.speculation import Speculation
from kvlab.request import Request
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.growing import Growing
from kvlab.strategies.paged import Paged
from kvlab.strategies.prefix import Prefix
from kvlab.strategies.radix import Radix


def asks(*shapes: tuple[int, int], **options) -> list[Request]:
    """Requests of (prompt, output) tokens, all at 0."""
    prompts = [np.arange(prompt, dtype=np.int32) for prompt, _ in shapes]
    return [
        Request(index, prompt, output, prompt + output, 0.0, prompts[index], **options)
        for index, (prompt, output) in enumerate(shapes)
    ]


def outcomes(engine) -> dict[int, set[str]]:
    ended = engine.scheduler.tally.ended
    return {id: {one.outcome for one in ended if one.request.id == id} for id in {one.request.id for one in ended}}


def test_who_comes_back_from_the_host_alone_goes_on(memory, serve) -> None:
    """It asks for its next token, but nobody had been asked since it came: it failed as one that cannot go on."""
    strategy = Paged(replace(memory(14), host_bytes=1000 * 48), 2)
    engine = serve(strategy, asks((2, 12), (6, 8)), preemption=Swap(), most=1000)
    assert engine.scheduler.tally.swapped_out_tokens
    assert outcomes(engine) == {0: {"finished"}, 1: {"finished"}}


def test_a_sequence_is_not_brought_back_to_be_sent_away(memory, serve) -> None:
    """It came back into its old room, had none for one more token, and was copied out again, step after step."""
    strategy = Paged(replace(memory(24), host_bytes=1000 * 48), 2)
    engine = serve(strategy, asks((2, 20), (6, 14)), admission=FullPrompt(), preemption=Swap(), most=1000)
    assert outcomes(engine) == {0: {"finished"}, 1: {"finished"}}
    assert engine.scheduler.tally.preemptions == 1


def test_a_lone_search_forks_into_the_last_block(memory, serve) -> None:
    """A fork left room for two blocks more than it needs, and a search that fits failed."""
    engine = serve(Prefix(memory(12, max_len=6), 4), asks((2, 2), beams=2), most=100)
    assert outcomes(engine) == {0: {"finished"}}


def test_a_beam_that_is_waited_for_goes_before_whoever_gave_way(memory, serve) -> None:
    """Two searches that share nothing: one gave way, came back first, found no room, and gave way without end."""
    strategy = Paged(memory(34, max_len=11), 1)
    engine = serve(strategy, asks((1, 10), (3, 8), (4, 7), beams=3), admission=FullPrompt(), fork=False, most=3000)
    assert outcomes(engine) == {0: {"finished"}, 1: {"finished"}, 2: {"finished"}}
    assert max(one.preemptions for one in engine.scheduler.tally.ended) < 10


def test_a_beam_that_is_waited_for_goes_before_urgent_newcomers(memory, serve) -> None:
    """The newcomer was left no lane, as all were for the search, whose third beam stood behind it: nobody went on."""
    search, *others = asks((5, 7), *[(6, 6)] * 9, priority=2)
    made = [replace(search, beams=3, priority=1)]
    made += [replace(request, arrival_s=request.id - 0.5) for request in others]
    engine = serve(Paged(memory(200, max_seqs=3), 1), made, most=1000)
    assert outcomes(engine) == {index: {"finished"} for index in range(10)}


def test_beams_that_were_swapped_have_candidates_again(memory, serve) -> None:
    """They came back with all their tokens in place, so nothing was computed, and the search stood still for ever."""
    strategy = Contiguous(replace(memory(168, max_len=40, max_seqs=8, chunk=1), host_bytes=1000 * 48))
    made = asks((1, 2), (13, 6), (13, 13), (4, 5), (5, 5), (3, 4), beams=2)
    engine = serve(strategy, made, preemption=Swap(), fork=False, token_budget=4, most=5000)
    assert engine.scheduler.tally.swapped_out_tokens
    assert outcomes(engine) == {index: {"finished"} for index in range(6)}


def test_nobody_starts_while_somebody_stands_still(memory, serve) -> None:
    """Newcomers took the room that one who runs had asked for in vain, and none was left for both in the end."""
    strategy, started = Growing(memory(127, max_len=40), "double"), []

    def watch(scheduler, launch) -> None:
        still = [lane for lane in scheduler.lanes.order.tolist() if scheduler.lanes.asks[lane]]
        started.append((bool(still), scheduler.tally.admissions))

    made = asks((30, 10), (37, 3), (21, 19))
    made = [replace(request, arrival_s=3.0 * request.id) for request in made]
    engine = serve(strategy, made, admission=ReserveMaxTokens(), preemption=Never(), watch=watch, most=1000)
    assert engine.scheduler.tally.idle
    assert all(later == now for (still, later), (_, now) in zip(started[1:], started, strict=False) if still)


@pytest.mark.parametrize("tokens", [0, 3])
def test_a_pool_without_a_block_refuses_everybody(memory, serve, tokens: int) -> None:
    """The block that is never used was taken from a pool that has none."""
    engine = serve(Prefix(memory(tokens), 4, null_block=True), asks((2, 2)), most=10)
    assert outcomes(engine) == {0: {"refused"}}


@pytest.mark.parametrize("queue", ["arrival", "longest_prefix"])
def test_a_beam_that_is_waited_for_forks_though_others_were_ranked_before_it(memory, serve, queue: str) -> None:
    """Two samples had more in the cache and were before the beams; their elder left, and nobody forked or came."""
    samples, search = asks((3, 3), (2, 4))
    made = [replace(samples, n=3), replace(search, beams=3)]
    engine = serve(Radix(memory(30, max_len=6), 3), made, queue=queue, most=1000)
    assert outcomes(engine) == {0: {"finished"}, 1: {"finished"}}


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_a_budget_below_the_drafts_of_one_sequence(memory, serve, budget: int) -> None:
    """What a sequence and its drafts need together was more than a launch may compute: nobody ran, and it failed."""
    computed = []
    engine = serve(
        Paged(memory(200), 4), asks((7, 12), (3, 9)), token_budget=budget, most=1000,
        speculation=Speculation(5, 1.0, 0, lambda ids, positions: np.zeros(len(ids))),
        watch=lambda scheduler, launch: computed.append(int((launch.stop_B - launch.start_B).sum())),
    )  # fmt: skip
    assert outcomes(engine) == {0: {"finished"}, 1: {"finished"}}
    assert max(computed) == budget
    assert (engine.scheduler.tally.drafted_tokens > 0) == (budget > 1)
