"""Views against the plainest way to say where each token goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.memory.view import Blocks, Rows, make_view, slots_of


def oracle(table, start, stop, block_size):
    """Slot of each packed new token."""
    slots = []
    for row, first, last in zip(table.tolist(), start.tolist(), stop.tolist(), strict=True):
        for position in range(first, last):
            if block_size is None:
                slots.append(row[0] + position)
            else:
                slots.append(row[position // block_size] * block_size + position % block_size)
    return slots


def launch(rng, block_size, decode):
    count = int(rng.integers(1, 6))
    start = rng.integers(0, 40, count)
    stop = start + (1 if decode else rng.integers(0, 30, count))
    width = 1 if block_size is None else -(-70 // block_size) + 2
    table = rng.integers(0, 1000, (count, width)).astype(np.int32)
    return table, start, stop


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("block_size", [None, 1, 3, 16, 128])
def test_views_say_where_tokens_go(block_size, decode):
    rng = np.random.default_rng(1)
    for _ in range(30):
        table, start, stop = launch(rng, block_size, decode)
        view = make_view(table, start, stop, block_size)
        assert view.slot_T.tolist() == oracle(table, start, stop, block_size)
        assert view.length_B.tolist() == stop.tolist()
        assert view.new_B.tolist() == (stop - start).tolist()
        for index in range(len(table)):
            one = slice(index, index + 1)
            assert slots_of(view, index).tolist() == oracle(table[one], np.zeros(1, int), stop[one], block_size)


def test_types_and_shapes_are_those_kernels_expect():
    table, start, stop = np.array([[7, 1], [3, 9]], np.int32), np.array([4, 0]), np.array([5, 3])
    rows, blocks = make_view(table, start, stop, None), make_view(table, start, stop, 4)
    assert isinstance(rows, Rows)
    assert isinstance(blocks, Blocks)
    assert (rows.start_B.dtype, rows.length_B.dtype, rows.new_B.dtype) == (torch.int64, torch.int32, torch.int32)
    assert rows.slot_T.dtype == blocks.slot_T.dtype == torch.int64
    assert blocks.table_BP.dtype == torch.int32
    assert blocks.block_size == 4


def test_stale_entries_are_cut_off_or_left_alone():
    table = np.array([[7, -5, 2**31 - 1, -1], [3, 9, -7, -1]], np.int32)
    view = make_view(table, np.array([2, 7]), np.array([3, 8]), 4)
    assert view.table_BP.shape == (2, 2)
    assert view.table_BP.is_contiguous()
    assert view.slot_T.tolist() == [30, 39]


def test_slots_beyond_32_bits():
    view = make_view(np.array([[2**30]], np.int32), np.array([5]), np.array([6]), 16)
    assert view.slot_T.tolist() == [2**34 + 5]


def test_an_empty_launch():
    nothing = np.zeros(0, np.int64)
    for block_size in (None, 16):
        view = make_view(np.zeros((0, 4), np.int32), nothing, nothing, block_size)
        assert len(view.slot_T) == len(view.length_B) == 0
