"""A launch cut into pieces that a device computes one after another: what activations take has a bound.

The engine starts whatever fits into the pool, so the first launch of a run may be the whole pool's prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.launch import Also, Choices, Launch

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
        ids_T, also = launch.ids_T[first:last], _also(launch, index_P, first, last)
        piece = Launch(launch.lane_B[index_P], launch.row_B[index_P], start_P, stop_P, samples_P, ids_T, also=also)
        yield piece if launch.choices is None else replace(piece, choices=_choices(launch, first, last))


def _also(launch: Launch, index_P: NDArray[np.int64], first: int, last: int) -> Also | None:
    """Its sampled rows that lie in the packed tokens [first, last)."""
    if launch.also is None:
        return None
    row_M = launch.also.row_M
    inside_M = (row_M >= first) & (row_M < last)
    of_M = np.searchsorted(index_P, launch.also.of_M[inside_M])
    return Also(row_M[inside_M] - first, of_M, launch.also.id_M[inside_M])


def _choices(launch: Launch, first: int, last: int) -> Choices | None:
    """Those asked for of sampled rows in the packed tokens [first, last); what is found goes to the launch's own."""
    assert launch.choices is not None
    rows_M = launch.rows()
    before, upto = np.searchsorted(rows_M, (first, last))
    row_R = launch.choices.row_R
    row_R = row_R[(row_R >= before) & (row_R < upto)] - before
    return Choices(row_R, launch.choices.count, launch.choices.found) if len(row_R) else None
