"""Judges a view and a kernel of a plugin's own: over random tables, against float64 and the gather oracle.

In a plugin's test file:

    from kvlab.testing.kernels import judge

    def test_my_kernels():
        judge(MyKernels())
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.kernels import Kernels
from kvlab.kernels.pool import pool_shape, put, take
from kvlab.testing.gather import gather
from kvlab.testing.rule import RuleError

BLOCK_SIZES = (None, 1, 4, 16)
TILE = 8  # slots of a head-major tile
Q_HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
SCALE = HEAD_DIM**-0.5


def judge(
    kernels: Kernels,
    block_sizes: tuple[int | None, ...] = BLOCK_SIZES,
    seeds: int = 4,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-9,
) -> None:
    """Raise RuleError where it writes or reads another slot than the tables say, or computes something else.

    Every slot that no sequence holds is NaN, which whoever reads it passes on. block_sizes: None is rows. Kernels that
    say `tiles = True` are given head-major pools too.
    """
    for tile in (1, TILE) if getattr(kernels, "tiles", False) else (1,):
        for block_size in block_sizes:
            for seed in range(seeds):
                _judge(kernels, block_size, tile, seed, dtype, tolerance)


def _judge(
    kernels: Kernels, block_size: int | None, tile: int, seed: int, dtype: torch.dtype, tolerance: float
) -> None:
    geometry = "rows" if block_size is None else f"blocks of {block_size}"
    where = f"{geometry}{f', tiles of {tile}' if tile > 1 else ''}, seed {seed}"
    rng = np.random.default_rng(seed)
    stop_B = rng.integers(1, 40, 5)
    start_B = stop_B - (1 if seed % 2 else rng.integers(1, stop_B + 1))  # steps that only decode, and others
    table_BP, slots = _table(rng, stop_B, block_size)
    view = kernels.make_view(table_BP, start_B, stop_B, block_size)
    slot_T = gather(table_BP, start_B, stop_B, block_size)
    if not np.array_equal(np.asarray(view.slot_T), slot_T):
        raise RuleError("written where the tables say", f"{where}: slot_T is {view.slot_T}, should be {slot_T}")
    held_N = torch.from_numpy(gather(table_BP, np.zeros_like(stop_B), stop_B, block_size))
    random = torch.Generator().manual_seed(seed)
    shape = pool_shape(slots, KV_HEADS, HEAD_DIM, tile)
    keys, values = (torch.full(shape, torch.nan, dtype=dtype) for _ in "kv")
    for pool in (keys, values):
        put(pool, held_N, torch.randn(len(held_N), KV_HEADS, HEAD_DIM, generator=random, dtype=dtype))
    q_TQD = torch.randn(len(slot_T), Q_HEADS, HEAD_DIM, generator=random, dtype=dtype)
    o_TQD = kernels.attend(q_TQD, keys, values, view, SCALE).double()
    truth_TQD = _truth(q_TQD.double(), take(keys, held_N).double(), take(values, held_N).double(), start_B, stop_B)
    worst = (o_TQD - truth_TQD).abs().nan_to_num(nan=torch.inf).max()
    if not worst <= tolerance:
        raise RuleError("attends to its own tokens", f"{where}: off by {float(worst):.3g}, allowed is {tolerance:g}")


def _table(
    rng: np.random.Generator, stop_B: NDArray[np.int64], block_size: int | None
) -> tuple[NDArray[np.int32], int]:
    """Scattered room for each sequence, entries beyond the last in use wrong; and the slots of the pool."""
    if block_size is None:
        longest = int(stop_B.max())
        return (rng.permutation(2 * len(stop_B))[: len(stop_B), None] * longest).astype(np.int32), 20 * longest
    count_B = -(-stop_B // block_size)
    blocks = 2 * int(count_B.sum())
    table_BP = np.full((len(stop_B), int(count_B.max()) + 2), blocks - 1, np.int32)
    free = rng.permutation(blocks - 1)
    for row_P, count in zip(table_BP, count_B, strict=True):
        row_P[:count], free = free[:count], free[count:]
    return table_BP, blocks * block_size


def _truth(
    q_TQD: Tensor, k_NHD: Tensor, v_NHD: Tensor, start_B: NDArray[np.int64], stop_B: NDArray[np.int64]
) -> Tensor:
    """Each query by itself; k_NHD and v_NHD pack the tokens of the sequences in order."""
    k_NQD, v_NQD = (x_NHD.repeat_interleave(Q_HEADS // KV_HEADS, 1) for x_NHD in (k_NHD, v_NHD))
    o_TQD: list[Tensor] = []
    first = 0
    for start, stop in zip(start_B.tolist(), stop_B.tolist(), strict=True):
        for position in range(start, stop):
            seen = slice(first, first + position + 1)
            weight_NQ = torch.softmax((k_NQD[seen] * q_TQD[len(o_TQD)]).sum(-1) * SCALE, 0)
            o_TQD.append((weight_NQ[..., None] * v_NQD[seen]).sum(0))
        first += stop
    return torch.stack(o_TQD)
