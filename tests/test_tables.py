"""Where each sequence's slots are: what kernels read, and what a window or a rollback takes away."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Memory
from kvlab.tables import Tables


@pytest.fixture
def tables():
    tables = Tables(3, 6)
    tables.open(7, [10, 11])
    return tables


def test_entries_come_and_go(tables):
    tables.append(7, [12])
    tables.append(7, [13, 14])
    tables.put(7, 1, 99)
    assert tables[7].tolist() == [10, 99, 12, 13, 14]
    assert np.shares_memory(tables[7], tables.data)
    assert tables.cut(7, 3) == [13, 14]
    assert tables.cut(7, 5) == []
    assert tables[7].tolist() == [10, 99, 12]
    assert tables.close(7) == [10, 99, 12]
    assert len(tables) == 0


def test_what_a_window_left_behind_is_not_given_back_twice(tables):
    tables.append(7, [12, 13])
    assert tables.expire(7, 2) == [10, 11]
    assert tables.expire(7, 1) == []
    assert tables.cut(7, 1) == [12, 13]
    assert tables.close(7) == []


def test_no_more_expires_than_there_is(tables):
    """Entries beyond the last one, left by who had the row before, were given back as live."""
    tables.append(7, [12, 13])
    tables.cut(7, 1)
    assert tables.expire(7, 4) == [10]
    tables.append(7, [20])
    assert tables.close(7) == [20]


def test_rows_are_handed_on_and_others_stay(tables):
    tables.open(8, [1])
    tables.close(7)
    for seq in (9, 10):
        tables.open(seq, [seq])
    assert [tables[seq].tolist() for seq in (8, 9, 10)] == [[1], [9], [10]]
    assert sorted(tables.row.values()) == [0, 1, 2]


@pytest.mark.parametrize("use", ["close", "__getitem__"])
def test_unknown_and_repeated_sequences_are_errors(tables, use):
    with pytest.raises(KeyError):
        getattr(tables, use)(8)
    with pytest.raises(KeyError, match="open already"):
        tables.open(7, [1])
    assert len(tables.spare) == 2


def test_slots_that_a_table_cannot_count_are_refused():
    """An entry above 2^31 ended the run when the first sequence reached it."""
    memory = Memory(2**30, 64, max_len=2**20, max_seqs=2**11, chunk=1, page_group_bytes=4096)
    assert VAttention(memory).pools[0].slots == 2**31
    with pytest.raises(ValueError, match=r"2,149,580,800 slots: tables of 32 bits"):
        VAttention(Memory(2**30, 64, max_len=2**20, max_seqs=2**11 + 2, chunk=1, page_group_bytes=4096))
