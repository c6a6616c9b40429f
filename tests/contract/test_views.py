"""One oracle reads every view: what the tables of random lives say, slots, views and the oracle say alike."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvlab.memory.view import make_view, slots_of
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.paged import Paged
from kvlab.strategies.vattention import VAttention
from kvlab.testing import gather
from kvlab.testing.contract import acceptable
from kvlab.testing.life import Life

MAKE = {
    "contiguous": lambda setting: Contiguous(setting.memory),
    "paged": lambda setting: Paged(setting.memory, setting.block_size),
    "vattention": lambda setting: VAttention(setting.memory),
}


@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, setting) for name, make in MAKE.items() for setting in acceptable(make)],
    ids=lambda value: getattr(value, "name", value),
)
def test_views_slots_and_oracle_agree(name, setting):
    strategy, rng, seen = MAKE[name](setting), random.Random(0), 0
    life = Life(strategy, seed=1)
    for _ in range(15):
        life.step()
        running = [sequence for sequence in life.trial.running.values() if sequence.issued]
        if not running:
            continue
        table_BP = strategy.table.data[[strategy.table.row[sequence.seq] for sequence in running]]
        stop_B = np.array([sequence.issued for sequence in running])
        start_B = np.array([rng.randrange(stop) for stop in stop_B.tolist()])
        view = make_view(table_BP, start_B, stop_B, strategy.block_size)
        oracle = gather(table_BP, start_B, stop_B, strategy.block_size)
        np.testing.assert_array_equal(view.slot_T.numpy(), oracle)
        for index, sequence in enumerate(running):
            whole = gather(table_BP[[index]], np.zeros(1, int), stop_B[[index]], strategy.block_size)
            np.testing.assert_array_equal(slots_of(view, index).numpy(), whole)
            np.testing.assert_array_equal(strategy.slots(sequence.seq, 0, 0, sequence.issued), whole)
            seen += 1
    assert seen


def test_the_oracle_by_hand():
    table_BP = np.array([[7, 2, 0], [5, 0, 0]], np.int32)
    blocks = gather(table_BP, np.array([1, 0]), np.array([5, 2]), 3)
    assert blocks.tolist() == [22, 23, 6, 7, 15, 16]
    rows = gather(table_BP, np.array([1, 0]), np.array([3, 2]), None)
    assert rows.tolist() == [8, 9, 5, 6]
