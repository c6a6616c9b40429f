"""Rows whose slots have memory in whole tiles, as layout=head_major needs them, keep what every strategy must."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Arrival, Memory
from kvlab.testing.contract import lives
from kvlab.testing.memories import SETTINGS, Setting


@pytest.mark.parametrize("map_ahead", [0, 1])
@pytest.mark.parametrize("tile", [2, 8])
def test_lives(tile: int, map_ahead: int) -> None:
    def make(setting: Setting) -> VAttention:
        return VAttention(replace(setting.memory, tile=tile), map_ahead)

    report = lives(make, range(len(SETTINGS)), 60)
    assert report.seen["admitted"] > 20


@pytest.mark.parametrize("tile", [1, 2, 4, 8])
def test_all_tiles_of_a_room_are_mapped(tile: int) -> None:
    """Through growth, forks, truncation and release, with tokens that straddle page groups."""
    memory = Memory(120 * 48 + 20, 48, max_len=41, max_seqs=7, chunk=5, page_group_bytes=120, tile=tile)
    strategy, rng = VAttention(memory), np.random.default_rng(tile)
    room: dict[int, int] = {}
    for seq in range(60):
        length = int(rng.integers(1, 20))
        grant = strategy.admit(Arrival(seq, length, length, 41, 41), length)
        if grant is not None:
            room[seq] = grant.room
        for other in list(room):
            act = rng.integers(0, 4)
            if act == 0:
                strategy.release(other)
                del room[other]
            elif act == 1 and room[other] < 41:
                room[other] = strategy.extend(other, room[other], room[other] + 1) or room[other]
            elif act == 2:
                child = 1000 + 100 * seq + other
                forked = strategy.fork(other, Arrival(child, room[other], room[other], 41, 41))
                if forked is not None:
                    room[child] = forked.room
        strategy.drain()
        mapped = set(strategy.mapped_at()[:, 0].tolist())
        for each, tokens in room.items():
            first = int(strategy.slots(each, 0, 0, 1)[0])
            assert first % tile == 0
            last_byte = (first + -(-tokens // tile) * tile) * 48 - 1
            assert set(range(first * 48 // 120, last_byte // 120 + 1)) <= mapped
    assert room
