"""Columns of what runs, made by hand, and arrivals beside them."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.engine.axes import Running
from kvlab.strategy import Arrival, Usage

TOKEN_BYTES = 10


@pytest.fixture
def running():
    """Rows are (known, prompt, limit, room) of sequences 0, 1, 2 ..., oldest first; expected and priority beside."""

    def make(*rows, expected=None, priority=None, block=1) -> Running:
        known, prompt, limit, room = np.array(rows, np.int64).reshape(-1, 4).T
        return Running(
            seq_B=np.arange(len(rows)),
            stored_B=np.maximum(known - 1, 0),
            known_B=known,
            prompt_B=prompt,
            limit_B=limit,
            expected_B=limit if expected is None else np.array(expected),
            room_B=room,
            priority_B=np.zeros(len(rows), np.int64) if priority is None else np.array(priority),
            token_bytes=TOKEN_BYTES,
            unit_bytes=block * TOKEN_BYTES,
        )

    return make


@pytest.fixture
def arrival():
    def make(
        length: int, limit: int, *, prompt: int | None = None, expected: int | None = None, seq: int = 9
    ) -> Arrival:
        return Arrival(seq, length, length if prompt is None else prompt, limit, expected or limit)

    return make


@pytest.fixture
def usage():
    """Of a pool of so many tokens, of which some are free and some held only for a hit."""

    def make(pool: int, free: int, cached: int = 0) -> Usage:
        held = pool - free - cached
        return Usage(held * TOKEN_BYTES, cached * TOKEN_BYTES, free * TOKEN_BYTES, largest=free + cached)

    return make
