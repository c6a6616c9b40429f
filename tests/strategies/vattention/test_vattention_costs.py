"""What rows of very many page groups cost, in counts."""

from __future__ import annotations

import sys

import pytest

from kvlab.strategies.vattention import VAttention


def lines_of(call):
    """Lines of Python that the call runs."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("shared", [False, True])
def test_rows_of_thousands_of_page_groups_cost_no_more(shared, memory, arrival):
    """Finding an idle row, and whom to steal from, looked through every possible number of page groups."""
    counts = []
    for max_len in (64, 64_000):
        strategy = VAttention(memory(64, 1, max_len=max_len, max_seqs=8))
        strategy.admit(arrival(0, 60), 60)
        strategy.release(0)
        if shared:
            strategy.admit(arrival(8, 3), 3)
            strategy.fork(8, arrival(9, 3))
        steps = [
            lines_of(lambda strategy=strategy: strategy.admit(arrival(1, 1), 1)),
            lines_of(lambda strategy=strategy: strategy.admit(arrival(2, 2), 2)),
            lines_of(lambda strategy=strategy: strategy.extend(2, 2, 9)),
            lines_of(lambda strategy=strategy: strategy.release(2)),
        ]
        assert strategy.counts["stolen"] > 0
        counts.append(steps)
    assert counts[0] == counts[1]
    assert sum(counts[0]) < 500


def test_a_long_row_leaves_at_the_cost_of_what_it_shares(memory, arrival):
    strategy = VAttention(memory(9000, 1, max_len=8000, max_seqs=4))
    strategy.admit(arrival(0, 8000), 8000)
    strategy.fork(0, arrival(1, 4))
    assert strategy.returns(0) == 7996
    strategy.drain()
    strategy.release(0)
    assert len(strategy.drain()) == 4 * 3, "four taken away, four others moved into their places"
