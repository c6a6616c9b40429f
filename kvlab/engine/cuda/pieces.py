"""A launch cut into pieces that a device computes one after another: what activations take has a bound.

The engine starts whatever fits into the pool, so the first launch of a run may be the whole pool's prompts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvlab.engine.lanes import Launch

MOST_TOKENS = 8192  # of a piece; matrix products gain nothing from more


def pieces(launch: Launch, most: int = MOST_TOKENS) -> Iterator[Launch]:
    """Launches of at most `most` tokens that make up this one, in its order; only a prompt's last piece samples."""
    new_B = launch.stop_B - launch.start_B
    if int(new_B.sum()) <= most:
        yield launch
        return
    assert launch.ids_T is not None
    end_B = np.cumsum(new_B)
    for first in range(0, int(end_B[-1]), most):
        last = min(first + most, int(end_B[-1]))
        index_P = np.flatnonzero((end_B > first) & (end_B - new_B < last))
        start_P = launch.start_B[index_P] + np.maximum(first - (end_B - new_B)[index_P], 0)
        stop_P = launch.stop_B[index_P] - np.maximum(end_B[index_P] - last, 0)
        samples_P = launch.samples_B[index_P] & (stop_P == launch.stop_B[index_P])
        ids_T = launch.ids_T[first:last]
        yield Launch(launch.lane_B[index_P], launch.row_B[index_P], start_P, stop_P, samples_P, ids_T)
