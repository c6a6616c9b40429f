"""What tests of CPU kernels share: sequences scattered over a pool of NaN, and the truth about them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.kernels.pool import pool_shape, put
from kvlab.kernels.reference import attend as truth
from kvlab.memory.view import make_view

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 6e-3}  # relative RMS


class Case:
    """Sequences of random tokens; `placed` puts them into a pool of NaN wherever a table says.

    shape: element type, head size, key/value heads, query heads of each; pieces: of each sequence the length, and how
    many of its last tokens are new. Who comes later changes nothing of those before.
    """

    def __init__(self, shape, pieces):
        self.shape, random = shape, torch.Generator().manual_seed(0)
        dtype, head_dim, heads, groups = shape
        self.scale = head_dim**-0.5
        self.stop, self.new = np.array(pieces).T
        self.start = self.stop - self.new
        queries, self.kv = [], []
        for length, new in pieces:
            queries.append(torch.randn(new, heads * groups, head_dim, generator=random).to(dtype))
            self.kv.append(torch.randn(2, length, heads, head_dim, generator=random).to(dtype))
        self.q_TQD = torch.cat(queries)

    def placed(self, block_size, tile=1):
        """Pools of keys and of values, and the view; block_size None: rows, one slot of nobody before each."""
        table_BP, slots = self._rows() if block_size is None else self._shuffled(block_size)
        pools = self._pools(table_BP, block_size, slots, tile)
        return *pools, make_view(table_BP, self.start, self.stop, block_size)

    def _rows(self):
        return (np.cumsum(self.stop + 1) - self.stop)[:, None].astype(np.int32), int((self.stop + 1).sum()) + 3

    def _shuffled(self, block_size):
        """Entries beyond the last in use are any numbers."""
        rng, count_B = np.random.default_rng(1), -(-self.stop // block_size)
        table_BP = rng.integers(-(2**31), 2**31 - 1, (len(count_B), int(count_B.max()) + 2)).astype(np.int32)
        blocks = int(count_B.sum()) + 3
        of_each = np.split(rng.permutation(blocks), np.cumsum(count_B))
        for row_P, own in zip(table_BP, of_each[:-1], strict=True):
            row_P[: len(own)] = own
        return table_BP, blocks * block_size

    def _pools(self, table_BP, block_size, slots, tile):
        dtype, head_dim, heads, _ = self.shape
        pools = torch.full((2, *pool_shape(slots, heads, head_dim, tile)), torch.nan, dtype=dtype)
        for row_P, kv_2NHD in zip(table_BP, self.kv, strict=True):
            position = np.arange(kv_2NHD.shape[1])
            size = block_size or 1 << 30
            slot_N = row_P[position // size].astype(np.int64) * (block_size or 1) + position % size
            for pool, x_NHD in zip(pools, kv_2NHD, strict=True):
                put(pool, torch.from_numpy(slot_N), x_NHD)
        return pools

    def check(self, o_TQD, window=None, tolerance=None):
        """Each sequence for itself against the reference."""
        expected_TQD = truth(self.q_TQD, *self.placed(None), self.scale, window)
        sizes, tolerance = self.new.tolist(), tolerance or TOLERANCE[o_TQD.dtype]
        for length, o_NQD, expected_NQD in zip(self.stop, o_TQD.split(sizes), expected_TQD.split(sizes), strict=True):
            if len(o_NQD):
                error = ((o_NQD.double() - expected_NQD).square().mean() / expected_NQD.square().mean()).sqrt().item()
                assert error < tolerance, f"length {length}: relative RMS error {error:.1e}"


@pytest.fixture(scope="session")
def case_of():
    """case_of(shape, pieces)."""
    return Case


@pytest.fixture(autouse=True)
def _one_thread(threads):
    """Of torch, unless a test says otherwise."""
