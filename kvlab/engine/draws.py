"""Draws that depend on a sequence and a position alone: no state, the same in any order and on any machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.sequence import BRANCH_BITS

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mixed(id_N: NDArray[np.int64], position_N: NDArray[np.int64], salt: int = 0) -> NDArray[np.uint64]:
    """64 bits that look drawn by chance, others for each sequence, branches of one request included."""
    branch_N = (id_N >> BRANCH_BITS).astype(np.uint64)  # above what is left of an id that is shifted
    mixed_N = (id_N.astype(np.uint64) << np.uint64(32)) + position_N.astype(np.uint64) + branch_N * GOLDEN
    mixed_N ^= np.uint64(salt * int(GOLDEN) % 2**64)
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (29, 0xC4CEB9FE1A85EC53), (32, 1)):
        mixed_N = (mixed_N ^ (mixed_N >> np.uint64(shift))) * np.uint64(factor)
    return mixed_N


def even(mixed_N: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers between 0 and 1, neither of them included."""
    draws_N: NDArray[np.float64] = (mixed_N >> np.uint64(11)).astype(np.float64)
    return (draws_N + 0.5) / 2.0**53
