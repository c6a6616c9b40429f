"""Rows of virtual memory: where they start, which are taken, and whose page groups are when none is left."""

from __future__ import annotations

import pytest

from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Map


@pytest.mark.parametrize(("group_tokens", "align", "slots"), [(8, 8, 24), (2.5, 5, 20), (1 / 3, 1, 20), (20, 20, 20)])
def test_rows_start_where_a_page_group_starts(group_tokens, align, slots, memory, arrival):
    """So neighbours never lie on one page group, whatever their lengths."""
    strategy = VAttention(memory(400, group_tokens, max_len=20))
    assert (strategy.memory.align, strategy.row_slots) == (align, slots)
    for seq in range(6):
        strategy.admit(arrival(seq, 20), 20)
        assert int(strategy.table[seq][0]) * strategy.memory.token_bytes % strategy.memory.page_group_bytes == 0
    physical = [move.physical for move in strategy.drain()]
    assert len(set(physical)) == len(physical)


def test_a_released_row_keeps_its_page_groups_and_fits_best(life):
    life = life(80, 8)
    strategy = life.strategy
    for length in (8, 32, 16):
        life.write(life.admit(length), length)
    rows = [strategy._row(seq) for seq in range(3)]
    for seq in range(3):
        life.release(seq)
    life.admit(10)
    assert strategy._row(3) == rows[2], "two page groups: the row with two, not the one with four"
    assert strategy.drain() == []
    life.admit(40)
    assert strategy._row(4) == rows[1]
    assert [type(move) for move in strategy.drain()] == [Map]


def test_page_groups_are_stolen_from_the_fullest_idle_row_and_only_when_none_is_unmapped(life):
    life = life(64, 8)
    for length in (40, 16):
        life.write(life.admit(length), length)
    fuller = life.strategy._row(0)
    life.release(0)
    life.release(1)
    life.admit(16)  # the row with two
    assert life.write(2, 24), "the last one under no row"
    assert life.strategy.counts["stolen"] == 0
    assert life.write(2, 40)
    assert life.strategy.counts["stolen"] == 2
    assert len(life.strategy.mapped[fuller]) == 3
    life.check()


def test_a_live_rows_surplus_is_taken_last(life):
    life = life(48, 8)
    life.write(life.admit(48), 48)
    life.truncate(0, 9)
    assert life.strategy.usage().held == 2 * 8 * life.strategy.memory.token_bytes
    assert life.strategy.usage().backed == 48 * life.strategy.memory.token_bytes
    assert life.strategy.drain() == [], "they stay mapped"
    assert life.write(life.admit(20), 20)
    assert life.strategy.counts["stolen"] == 3
    assert life.write(0, 17), "the fourth that is left"
    assert life.call("extend", 0, 17, 25) is None
    life.check()


@pytest.mark.parametrize("call", ["extend", "release", "truncate", "returns", "fork"])
def test_unknown_sequences_are_key_errors(call, life, arrival):
    strategy = life(64, 4).strategy
    arguments = {"extend": (7, 0, 1), "truncate": (7, 0), "fork": (7, arrival(8, 1))}
    with pytest.raises(KeyError):
        getattr(strategy, call)(*arguments.get(call, (7,)))


def test_open_sequences_cannot_be_opened_again(life, arrival, state):
    life = life(64, 4)
    life.write(life.admit(8), 8)
    before = state(life.strategy)
    for call in (lambda: life.strategy.admit(arrival(0, 4), 4), lambda: life.strategy.fork(0, arrival(0, 4))):
        with pytest.raises(KeyError):
            call()
    assert state(life.strategy) == before
