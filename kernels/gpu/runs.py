"""Runs of slots to copy, before a GPU copies them: checked, grouped by what may be done at once, cut into pieces.

N runs and P pieces of them: source_N, target_N, tokens_N are the rows of run_3N.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvlab.errors import UsageError

Ints = NDArray[np.int64]


def checked(source_N: Ints, target_N: Ints, tokens_N: Ints, slots: int) -> Ints:
    """run_3N. UsageError: a run that is empty, leaves the `slots` or overlaps itself."""
    counts = len(source_N), len(target_N), len(tokens_N)
    if len(set(counts)) > 1:
        raise UsageError(f"{counts} sources, targets, lengths: allowed is one of each")
    run_3N = np.stack([source_N, target_N, tokens_N]).astype(np.int64)
    lower_N, upper_N = run_3N[:2].min(0), run_3N[:2].max(0)
    wrong_N = (run_3N[2] < 1) | (lower_N < 0) | (upper_N > slots - run_3N[2]) | (upper_N - lower_N < run_3N[2])
    for source, target, tokens in run_3N[:, wrong_N].T.tolist():
        run = f"{tokens} tokens from slot {source} to {target}"
        raise UsageError(f"{run}: allowed is 1 or more, within {slots} slots, not over themselves")
    return run_3N


def waves(run_3N: Ints) -> Iterator[Ints]:
    """The runs in order, in groups within which no run touches what another writes; mostly all in one."""
    count = run_3N.shape[1]
    if not count:
        return
    if count == 1 or _independent(run_3N):
        yield run_3N
        return
    yield from waves(run_3N[:, : count // 2])
    yield from waves(run_3N[:, count // 2 :])


def pieces(run_3N: Ints, tokens: int) -> Ints:
    """piece_3P: the runs cut into pieces of at most `tokens` tokens."""
    source_N, target_N, tokens_N = run_3N
    pieces_N = -(-tokens_N // tokens)
    index_P = np.repeat(np.arange(len(pieces_N)), pieces_N)
    done_P = (np.arange(len(index_P)) - np.repeat(np.cumsum(pieces_N) - pieces_N, pieces_N)) * tokens
    left_P = tokens_N[index_P] - done_P
    return np.stack([source_N[index_P] + done_P, target_N[index_P] + done_P, np.minimum(left_P, tokens)])


def _independent(run_3N: Ints) -> bool:
    source_N, target_N, tokens_N = run_3N[:, np.argsort(run_3N[1])]
    stop_N = target_N + tokens_N
    if (stop_N[:-1] > target_N[1:]).any():
        return False
    # The first target that ends behind a source's start is the only one that can overlap it from below.
    index_N = np.searchsorted(stop_N, source_N, side="right")
    start_N = np.append(target_N, np.iinfo(np.int64).max)[index_N]
    return bool((source_N + tokens_N <= start_N).all())
