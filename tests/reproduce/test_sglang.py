"""Programs whose calls go on from answers, what a cache finds of them, and the order that the theorem is about."""

from __future__ import annotations

import pytest

from kvlab.harness.compose import Composer
from kvlab.reproduce import programs, sglang
from kvlab.reproduce.frame import Lab
from kvlab.reproduce.programs import Call, Piece, Program
from kvlab.reproduce.sglang_workloads import (
    ASKED,
    CHAT_ANSWERS,
    EPISODE,
    FIVE_SHOTS,
    TURNS,
    WORKLOADS,
    branching,
    chat,
    few_shot,
    react,
    tree_of_thought,
)

SERVER = ["preset=sglang", "model=llama_2_7b", "gpu=a10g", "max_len=4096"]


@pytest.fixture(scope="module")
def lab():
    with Composer() as composer:
        yield Lab(lambda overrides: composer.compose(overrides).config, seeds=(11,))


def two_calls(**of_second) -> Program:
    return [Call((Piece(1, 10),), 4), Call((Piece(2, 6),), 2, after=0, **of_second)]


def test_a_call_finds_the_prompt_and_the_answer_it_goes_on_from(lab):
    """But for the answer's last token, which nothing was computed of."""
    found = programs.serve(lab, SERVER, [two_calls()], 1)
    assert (found.prompt_tokens, found.hit_tokens) == (10 + 10 + 4 + 6, 10 + 3)
    assert found.hit_rate == pytest.approx(100 * 13 / 30)


def test_a_call_that_drops_the_answer_finds_the_prompt_alone(lab):
    found = programs.serve(lab, SERVER, [two_calls(answered=False)], 1)
    assert (found.prompt_tokens, found.hit_tokens) == (10 + 10 + 6, 10)


def test_where_nothing_is_shared_nothing_is_found_and_it_takes_longer(lab):
    shared, alone = (programs.serve(lab, SERVER, chat(0, "short"), 8, share=share) for share in (True, False))
    assert alone.hit_tokens == 0 < shared.hit_tokens
    assert alone.prompt_tokens == shared.prompt_tokens
    assert alone.duration_s > shared.duration_s


def test_no_more_programs_are_under_way_than_asked_for(lab):
    """One at a time, the second call of each comes before the first of the next, and finds its prefix."""
    calls = [[Call((Piece(10 * name, 40),), 4), Call((Piece(10 * name + 1, 4),), 4, after=0)] for name in range(1, 9)]
    small = [*SERVER, "block_size=1", "pool_blocks=64"]
    one, all_of_them = (programs.serve(lab, small, calls, together) for together in (1, 8))
    assert one.hit_tokens == 8 * 43
    assert all_of_them.hit_tokens < one.hit_tokens


def test_a_call_that_fails_ends_the_run_with_its_reason(lab):
    with pytest.raises(RuntimeError, match="request 0: refused, may grow to 104 tokens"):
        programs.serve(lab, [*SERVER, "block_size=1", "pool_blocks=50"], [[Call((Piece(1, 100),), 4)]], 1)


def test_workloads_have_the_shapes_of_the_benchmarks():
    assert {len(program) for program in tree_of_thought(0)} == {2 + 4 + 8 + 16}
    assert {len(program) for program in chat(0, "long")} == {TURNS}
    assert {len(program) for program in react(0)} == set(range(EPISODE[0], EPISODE[1] + 1))
    low, high = CHAT_ANSWERS["short"]
    assert all(low <= call.output <= high for program in chat(1, "short") for call in program)
    assert len({program[0].new[0] for program in few_shot(0)}) == 1
    assert few_shot(0)[0][0].new[0].tokens == FIVE_SHOTS
    first, *rest = tree_of_thought(0)[0]
    assert first.new[0].tokens == ASKED[0]
    assert all(call.after is not None or call.new == first.new for call in rest)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_draws_the_same_programs_again_and_another_others(name):
    assert WORKLOADS[name](3) == WORKLOADS[name](3) != WORKLOADS[name](4)


def test_depth_first_and_longest_prefix_first_find_all_there_is_with_room_for_one(lab):
    found = sglang._theorem(lab)
    value = {name: one.values[0] for name, one in found.items()}
    assert value["one at a time, longest shared prefix first: of the best"] == 100
    assert value["one at a time, depth first: of the best"] == 100
    assert value["one at a time, first come first served: of the best"] < 60


def test_the_best_hit_rate_is_all_but_what_prompts_have_of_their_own(lab):
    """A tree of prompts: each piece is computed once."""
    calls = branching(5)
    pieces = {call[0].new[: depth + 1] for call in calls for depth in range(len(call[0].new))}
    once = sum(path[-1].tokens for path in pieces)
    found = programs.serve(lab, [*SERVER[:2], "gpu=h200", "max_len=4096", "engine.max_seqs=1"], calls, len(calls))
    assert found.hit_tokens == found.prompt_tokens - once
