"""Rows that are reallocated: where they go, what is copied, and that a refusal leaves the old row intact."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from kvlab.engine.axes import Limit, Newest, PromptPlusOne
from kvlab.engine.clock import StepClock
from kvlab.engine.engine import Engine
from kvlab.engine.lanes import Lanes
from kvlab.engine.scheduler import Scheduler
from kvlab.ranges import Ranges
from kvlab.record.recorder import Recorder
from kvlab.request import Request
from kvlab.strategies.growing import Growing
from kvlab.strategy import Arrival, Copy, Grant, Memory


def growing(slots, max_len=64, max_seqs=8, **arguments):
    memory = Memory(bytes=slots * 4, token_bytes=4, max_len=max_len, max_seqs=max_seqs, chunk=max_len)
    return Growing(memory, **arguments)


def arrival(seq, length):
    return Arrival(seq, length, length, 64, 64)


def row(strategy, seq):
    return int(strategy.table[seq][0]), strategy.size[seq]


def state(strategy):
    return copy.deepcopy(
        (
            vars(strategy.space),
            strategy.size,
            strategy.rooms,
            strategy.leaving,
            strategy.moves,
            strategy.table.data.tolist(),
            strategy.table.row,
            strategy.table.spare,
        )
    )


def test_exact_copies_the_whole_row_for_every_token():
    strategy = growing(20, mode="exact")
    assert strategy.admit(arrival(0, 3), 3) == Grant(0, 3)
    assert [strategy.extend(0, length, length + 1) for length in (3, 4)] == [4, 5]
    assert strategy.drain() == [Copy(0, 3, 3), Copy(3, 7, 4)]  # slots [0, 3) are still held when the second is taken
    assert strategy.extend(0, 5, 6) == 6
    assert strategy.drain() == [Copy(7, 0, 5)]
    assert row(strategy, 0) == (0, 6)


def test_step_grows_to_the_next_multiple_and_is_not_asked_in_between():
    strategy = growing(40, mode="step", step=8)
    assert strategy.admit(arrival(0, 5), 5) == Grant(0, 8)
    assert strategy.extend(0, 7, 8) == 8
    assert strategy.extend(0, 8, 9) == 16
    assert strategy.drain() == [Copy(0, 8, 8)]
    assert row(strategy, 0) == (8, 16)


def test_double_takes_twice_the_old_row_up_to_max_len():
    strategy = growing(64, max_len=20, mode="double")
    assert strategy.admit(arrival(0, 3), 3) == Grant(0, 3)
    assert [strategy.extend(0, length, length + 1) for length in (3, 6, 12)] == [6, 12, 20]
    assert strategy.drain() == [Copy(0, 3, 3), Copy(3, 9, 6), Copy(9, 21, 12)]
    assert strategy.extend(0, 20, 21) is None


def test_old_and_new_are_held_until_the_drain():
    strategy = growing(12, mode="double")
    strategy.admit(arrival(0, 3), 3)
    strategy.extend(0, 3, 4)
    assert strategy.usage() == (4 * 9, 0, 4 * 3, 3, 4 * 3, None)
    strategy.drain()
    assert strategy.usage() == (4 * 6, 0, 4 * 6, 3, 0, None)


def test_a_refusal_leaves_the_old_row_intact():
    strategy = growing(12, mode="exact")
    strategy.admit(arrival(0, 6), 6)
    strategy.admit(arrival(1, 2), 2)
    before = state(strategy)
    assert strategy.extend(0, 6, 7) is None  # 4 slots are free
    assert strategy.admit(arrival(2, 5), 5) is None
    assert strategy.admit(arrival(2, 2), 2, leave=3) is None
    assert state(strategy) == before
    assert row(strategy, 0) == (0, 6)


def test_nothing_is_copied_of_a_row_in_which_nothing_is_stored():
    strategy = growing(20, mode="exact")
    strategy.admit(arrival(0, 3), 3)
    assert strategy.extend(0, 0, 5) == 5
    assert strategy.drain() == []


def test_rows_go_to_the_lowest_range_that_is_long_enough_and_neighbours_join():
    strategy = growing(20, mode="exact")
    for seq, length in enumerate((2, 4, 3, 5)):
        strategy.admit(arrival(seq, length), length)
    strategy.release(0)
    strategy.release(2)
    strategy.admit(arrival(4, 3), 3)
    assert row(strategy, 4) == (6, 3)
    strategy.release(1)
    strategy.admit(arrival(5, 6), 6)  # slots [0, 2) and [2, 6) are one range
    assert row(strategy, 5) == (0, 6)


@pytest.mark.parametrize(
    ("slots", "arguments", "longest"),
    [
        (20, {"mode": "exact"}, 7),  # a row of 6 in the middle leaves 7 on either side, one of 7 leaves too little
        (20, {"mode": "double"}, 5),
        (20, {"mode": "step", "step": 4}, 8),
        (2, {"mode": "exact"}, 1),
        (200, {"mode": "exact"}, 64),
    ],
)
def test_longest_is_what_a_lone_row_reaches_from_the_worst_place(slots, arguments, longest):
    strategy = growing(slots, **arguments)
    assert strategy.longest == longest
    for where in range(slots):
        strategy = growing(slots, **arguments)
        strategy.admit(arrival(0, where), where) if where else None
        if strategy.admit(arrival(1, 1), 1) is None:
            continue
        strategy.release(0) if where else None
        for upto in range(2, longest + 1):
            assert strategy.extend(1, upto - 1, upto) is not None, (where, upto)
            strategy.drain()


def test_a_row_in_the_worst_place_is_why_longest_is_not_more():
    strategy = growing(20, mode="exact")
    for seq, length in enumerate((6, 7)):
        strategy.admit(arrival(seq, length), length)
    strategy.release(0)
    assert row(strategy, 1) == (6, 7)
    assert strategy.extend(1, 7, 8) is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [({"mode": "halve"}, "mode=halve: allowed is exact, step, double"), ({"step": 0}, "step=0")],
)
def test_wrong_arguments_are_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        growing(20, **arguments)


@pytest.mark.parametrize("slots", [1, 2, 13, 64, 100])
def test_ranges_agree_with_a_list_of_slots(slots):
    rng, space = random.Random(slots), Ranges(slots)
    free, taken = [True] * slots, []
    for _ in range(600):
        if rng.random() < 0.55:
            size = rng.randint(1, max(1, slots // 4))
            places = (at for at in range(slots - size + 1) if all(free[at : at + size]))
            expected = next(places, None)
            assert space.take(size) == expected
            if expected is not None:
                free[expected : expected + size] = [False] * size
                taken.append((expected, size))
        elif taken:
            start, size = taken.pop(rng.randrange(len(taken)))
            space.give(start, size)
            free[start : start + size] = [True] * size
        words = "".join(".#"[slot] for slot in free).split(".")
        assert (space.free, space.largest) == (sum(free), max(map(len, words)))


def test_a_range_widens_only_into_what_follows_it():
    space = Ranges(10)
    assert [space.take(size) for size in (2, 3, 2)] == [0, 2, 5]
    space.give(2, 3)
    assert space.widen(0, 2, 6) is None
    assert space.widen(0, 2, 5) == 0
    assert (space.free, space.largest) == (3, 3)
    assert space.widen(5, 2, 5) == 5
    assert space.free == space.largest == 0


def served(slots, sequences, output):
    """A run of lengths only, one prompt token each."""
    strategy = growing(slots, max_len=output + 1, mode="exact")
    lanes = Lanes(8, output + 1, with_ids=False)
    requests = [Request(seq, 1, output, output + 1) for seq in range(sequences)]
    scheduler = Scheduler(strategy, lanes, admission=PromptPlusOne(), victim=Newest(), forecast=Limit())
    engine = Engine(requests, scheduler, NoModel(), StepClock(), Recorder(strategy, lambda: 0))
    engine.run()
    return scheduler.tally


class NoModel:
    def run(self, moves, launch):
        return np.zeros(int(launch.samples_B.sum()), np.int32)


def test_rows_that_are_only_waiting_for_their_copy_cost_nobody_its_place():
    """Sequences were preempted for room that the step's own moves were about to give back."""
    tally = served(slots=30, sequences=3, output=6)
    assert [sequence.outcome for sequence in tally.ended] == ["finished"] * 3
    assert tally.preemptions == 0
