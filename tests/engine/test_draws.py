"""Draws by sequence and position."""

from __future__ import annotations

import numpy as np

from kvlab.engine.draws import even, mixed
from kvlab.engine.sequence import BRANCH_BITS


def test_every_branch_of_a_request_draws_for_itself() -> None:
    """An id that was shifted lost its branch: all beams of a search, and all samples' drafts, drew the same."""
    request, branch, position = (axis.ravel() for axis in np.indices((20, 8, 50)))
    id = request + (branch << BRANCH_BITS)
    for salt in (0, 1):
        assert len(np.unique(mixed(id, position, salt))) == 20 * 8 * 50
    assert not (mixed(id, position, 0) == mixed(id, position, 1)).any()


def test_draws_are_even() -> None:
    draws = even(mixed(np.arange(100_000), np.arange(100_000) % 7, 3))
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 43.8  # chi-square of 19 degrees of freedom, 1 in 1,000
