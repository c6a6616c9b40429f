"""The buddy: which slots in which order, what it rounds up, and what happens when a forecast was too small."""

from __future__ import annotations

import copy
import itertools
import random

import pytest

from kvlab.engine.axes import Limit, Oracle, Pow2
from kvlab.errors import UsageError
from kvlab.request import Request
from kvlab.strategies.buddy import Buddy, Halves
from kvlab.strategy import Arrival, Copy, Grant, Memory


def buddy(slots, max_len=16, max_seqs=8, fit="buddy"):
    return Buddy(Memory(bytes=slots * 4, token_bytes=4, max_len=max_len, max_seqs=max_seqs, chunk=max_len), fit)


def arrival(seq, length, expected=None):
    return Arrival(seq, length, length, 16, expected or length)


def admit(strategy, *expected):
    """Sequences 0, 1, ... of one token; where their runs begin."""
    for seq, tokens in enumerate(expected):
        assert strategy.admit(arrival(seq, 1, tokens), 1) == Grant(0, tokens)
    return [int(strategy.table[seq][0]) for seq in range(len(expected))]


def state(strategy):
    return copy.deepcopy(
        {**vars(strategy), "space": vars(strategy.space), "tables": None, "table": vars(strategy.table)}
    )


def same(a, b):
    a["table"]["data"], b["table"]["data"] = a["table"]["data"].tolist(), b["table"]["data"].tolist()
    return repr(a) == repr(b)  # of dicts also the order


def test_lower_halves_are_taken_and_upper_halves_stay_free():
    strategy = buddy(16)
    assert admit(strategy, 3, 4, 2, 1, 1) == [0, 4, 8, 10, 11]
    assert [list(starts) for starts in strategy.space.starts] == [[], [], [12], [], []]
    usage = strategy.usage()
    assert (usage.held, usage.free, usage.largest, usage.rounded) == (4 * 12, 4 * 4, 4, 4 * 1)


def test_halves_join_again_in_whatever_order_they_are_released():
    for order in itertools.permutations(range(5)):
        strategy = buddy(16)
        admit(strategy, 4, 4, 2, 2, 4)
        for seq in order:
            strategy.release(seq)
        assert [list(starts) for starts in strategy.space.starts] == [[], [], [], [], [0]]
        assert strategy.usage() == (0, 0, 64, 16, 0, None)


def test_a_pool_of_any_size_is_a_sum_of_powers_of_two():
    """The paper's: 15,744 slots. The largest run is 8,192, and trees never merge."""
    space = Halves(15_744)
    whole = {13: [0], 12: [8192], 11: [12288], 10: [14336], 8: [15360], 7: [15616]}
    assert {order: list(starts) for order, starts in enumerate(space.starts) if starts} == whole
    runs = [(space.take(size), size) for size in (64, 1024, 1024, 4096, 4096, 4096, 256, 64)]
    assert runs[:2] == [(15616, 64), (14336, 1024)]
    assert space.take(2048) is None
    for start, size in runs:
        space.give(start, size)
    assert {order: list(starts) for order, starts in enumerate(space.starts) if starts} == whole
    assert (space.free, space.largest) == (15_744, 8192)


def test_the_smallest_tree_that_fits_is_split_first():
    assert admit(buddy(16 + 4 + 2), 1, 1, 3, 5) == [20, 21, 16, 0]


def test_no_request_may_be_longer_than_the_largest_run():
    """22 slots are 16 + 4 + 2: free together, they are still no run of 17."""
    strategy = buddy(22, max_len=40)
    assert strategy.longest == strategy.usage().largest == 16
    before = state(strategy)
    assert strategy.admit(arrival(0, 17), 17) is None
    assert same(before, state(strategy))
    assert strategy.admit(arrival(0, 16, 17), 1) == Grant(0, 16)


def test_a_forecast_beyond_what_fits_is_cut_so_that_nobody_waits_for_ever():
    assert buddy(8).admit(arrival(0, 3, 16), 3) == Grant(0, 8)


def test_the_runs_that_leave_asks_for_stay_free():
    strategy = buddy(16)
    assert strategy.admit(arrival(0, 3), 3, leave=13) is None
    assert strategy.admit(arrival(0, 3), 3, leave=12) == Grant(0, 3)


def test_a_wrong_forecast_first_uses_up_what_was_rounded():
    strategy = buddy(16)
    admit(strategy, 5)
    assert strategy.usage().rounded == 4 * 3
    assert strategy.extend(0, 5, 6) == 8
    assert strategy.usage().rounded == 0
    assert strategy.drain() == []


def test_an_outgrown_run_takes_its_free_buddies_and_copies_only_if_it_begins_elsewhere():
    strategy = buddy(16)
    assert admit(strategy, 2, 2, 4) == [0, 2, 4]
    strategy.release(0)
    assert strategy.extend(1, 2, 3) == 4
    assert strategy.table[1].tolist() == [0]
    assert strategy.drain() == [Copy(2, 0, 2)]
    strategy.release(2)
    assert strategy.extend(1, 4, 9) == 16
    assert strategy.drain() == []
    assert strategy.usage() == (64, 0, 0, 0, 0, None)


def test_else_it_moves_and_holds_both_runs_until_the_drain():
    strategy = buddy(16)
    assert admit(strategy, 4, 4) == [0, 4]
    assert strategy.extend(0, 3, 5) == 8
    assert strategy.table[0].tolist() == [8]
    assert strategy.usage() == (64, 0, 0, 0, 16, None)
    assert strategy.drain() == [Copy(0, 8, 3)]
    assert strategy.usage() == (48, 0, 16, 4, 0, None)


def test_where_neither_is_possible_the_sequence_keeps_what_it_has():
    strategy = buddy(16)
    assert admit(strategy, 4, 4, 4) == [0, 4, 8]
    before = state(strategy)
    assert strategy.extend(0, 4, 5) is None
    assert strategy.extend(0, 4, 17) is None
    assert strategy.admit(arrival(3, 5), 5) is None
    assert same(before, state(strategy))


@pytest.mark.parametrize("fit", ["buddy", "first"])
def test_a_lone_sequence_reaches_longest_from_wherever_it_lies(fit):
    for seed in range(200):
        rng = random.Random(seed)
        strategy = buddy(rng.randint(6, 60), max_len=64, fit=fit)
        live = [seq for seq in range(8) if strategy.admit(arrival(seq, rng.randint(1, 5)), 1)]
        last = rng.choice(live)
        for seq in set(live) - {last}:
            strategy.release(seq)
        for upto in range(strategy.room[last], strategy.longest + 1):
            assert strategy.extend(last, upto - 1, upto) >= upto
            strategy.drain()


def test_first_fit_rounds_nothing_and_takes_the_lowest_range():
    strategy = buddy(20, fit="first")
    assert strategy.longest == 10
    assert admit(strategy, 3, 5, 6) == [0, 3, 8]
    assert strategy.usage() == (56, 0, 24, 6, 0, None)
    strategy.release(1)
    assert strategy.admit(arrival(3, 4), 4) == Grant(0, 4)
    assert strategy.table[3].tolist() == [3]
    assert strategy.extend(3, 4, 5) == 5  # the slot behind it is free
    assert strategy.extend(3, 5, 6) == 6
    assert strategy.table[3].tolist() == [14]
    assert strategy.drain() == [Copy(3, 14, 5)]
    assert strategy.usage().largest == 5


def test_unknown_and_repeated_sequences_are_key_errors():
    strategy = buddy(16)
    admit(strategy, 2)
    before = state(strategy)
    with pytest.raises(KeyError):
        strategy.admit(arrival(0, 2), 2)
    with pytest.raises(KeyError):
        strategy.extend(1, 1, 2)
    with pytest.raises(KeyError):
        strategy.release(1)
    assert same(before, state(strategy))


def test_a_wrong_fit_is_refused():
    with pytest.raises(ValueError, match="fit=best: allowed is buddy or first"):
        buddy(16, fit="best")


@pytest.mark.parametrize(
    ("forecast", "tokens"), [(Limit(), [100, 100, 100, 100]), (Pow2(), [42, 42, 74, 100]), (Oracle(), [35, 42, 59, 90])]
)
def test_what_each_forecast_expects_of_a_prompt_of_ten_tokens(forecast, tokens):
    """An output of 25 is 32 under pow2, one of 32 too, and nobody gets more than its limit."""
    assert [forecast.expect(Request(0, 10, output, 100)) for output in (25, 32, 49, 80)] == tokens


@pytest.mark.parametrize(("forecast", "name"), [(Pow2(), "pow2"), (Oracle(), "oracle")])
def test_a_forecast_that_needs_the_true_output_says_so(forecast, name):
    with pytest.raises(UsageError, match=f"forecast={name}: request 7 generates until end-of-text"):
        forecast.expect(Request(7, 10, None, 100))
