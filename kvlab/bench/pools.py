"""What kernels are measured over: pools of as many layers as no cache holds, and equally long sequences in them.

B sequences, P table entries, H key/value heads, D head size; pools: see kernels/pool.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.bench import pages
from kvlab.bench.moves import Moves
from kvlab.bench.timing import Clock
from kvlab.engine.kernels import Kernels
from kvlab.strategy import ceil_div

LINE = 64  # bytes


class Shape(NamedTuple):
    batch: int
    length: int
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def slot_bytes(self) -> int:
        """A token's key and value in one layer."""
        return 2 * self.kv_heads * self.head_dim * self.torch_dtype.itemsize

    @property
    def kv_bytes(self) -> int:
        """All keys and values of a layer."""
        return self.batch * self.length * self.slot_bytes


class Attention(NamedTuple):
    kernels: Kernels
    block_multiple: int = 1  # it takes blocks of multiples of so many slots
    rows_only: bool = False  # it takes no blocks, and only decodes

    def takes(self, op: str, block_size: int | None) -> bool:
        if self.rows_only:
            return op == "decode" and block_size is None
        return not (block_size or 0) % self.block_multiple


@dataclass(frozen=True)
class Plan:
    """What to measure, and on what."""

    device: str
    attentions: dict[str, Attention]
    moves: Moves
    ops: tuple[str, ...]  # of decode, prefill, append, copy
    block_sizes: tuple[int, ...]  # beside rows
    clock: Clock
    repeats: int
    least_s: float  # of one sample
    cold_bytes: int  # keys and values that a pass goes through, at least
    tile: int = 1  # slots of a head that lie side by side; 1: token-major
    pages: str | None = None  # of bench/pages.py; None: as torch allocates


class Store:
    """Keys and values of as many layers as are needed, and where the sequences lie in them."""

    def __init__(self, shape: Shape, plan: Plan) -> None:
        self.shape, self.device = shape, plan.device
        self.slots = _slots(shape, plan)
        pools = self._pools(plan)
        self.layers = list(zip(pools[::2], pools[1::2], strict=True))
        self.stop_B = np.full(shape.batch, shape.length, np.int64)

    def _pools(self, plan: Plan) -> list[Tensor]:
        """k_SHD or k_UHWD, and v alike, of each layer."""
        heads, dim, dtype = self.shape.kv_heads, self.shape.head_dim, self.shape.torch_dtype
        size = (self.slots, heads, dim) if plan.tile == 1 else (self.slots // plan.tile, heads, plan.tile, dim)
        count = 2 * _layers(self.shape, plan)
        if plan.pages is None:
            return [torch.empty(size, dtype=dtype, device=plan.device).normal_() for _ in range(count)]
        # All in one mapping: the system has only so many, and small shapes take a hundred thousand layers.
        pool_bytes = _pool_bytes(self.shape, plan)
        memory = pages.empty((count * pool_bytes,), torch.uint8, plan.pages).view(count, pool_bytes)
        nbytes = self.slots * heads * dim * dtype.itemsize
        return [row[:nbytes].view(dtype).view(size).normal_() for row in memory]

    def random(self, tokens: int, heads: int) -> Tensor:
        shape = (tokens, heads, self.shape.head_dim)
        return torch.randn(shape, dtype=self.shape.torch_dtype, device=self.device)

    def table(self, block_size: int | None) -> NDArray[np.int32]:
        """table_BP. Rows lie one after another, blocks in no order."""
        batch, length = self.shape.batch, self.shape.length
        if block_size is None:
            return (np.arange(batch) * length).astype(np.int32)[:, None]
        width = ceil_div(length, block_size)
        return np.random.default_rng(0).permutation(batch * width).reshape(batch, width).astype(np.int32)


def _layers(shape: Shape, plan: Plan) -> int:
    return ceil_div(plan.cold_bytes, shape.kv_bytes)


def _slots(shape: Shape, plan: Plan) -> int:
    """Of a pool: every sequence has whole blocks of any size."""
    slots = max(ceil_div(shape.length, size) * size for size in (1, *plan.block_sizes)) * shape.batch
    return ceil_div(slots, plan.tile) * plan.tile


def _pool_bytes(shape: Shape, plan: Plan) -> int:
    """Of a layer's keys, or values: large ones begin with a huge page, small ones with a cache line."""
    nbytes = _slots(shape, plan) * shape.slot_bytes // 2
    whole = pages.HUGE_BYTES if nbytes >= pages.HUGE_BYTES else LINE
    return ceil_div(nbytes, whole) * whole


def needed_bytes(shape: Shape, plan: Plan) -> int:
    """What `measure` takes: pools, the two arrays of the bandwidths, and a prompt's queries and results."""
    pools = 2 * _layers(shape, plan) * _pool_bytes(shape, plan)
    tokens = shape.batch * (shape.length if "prefill" in plan.ops else 1)
    queries = tokens * shape.q_heads * shape.head_dim * shape.torch_dtype.itemsize
    return pools + 2 * max(plan.cold_bytes, shape.kv_bytes) + 2 * queries


def empty(size: tuple[int, ...], dtype: torch.dtype, plan: Plan) -> Tensor:
    """In pages as planned."""
    if plan.pages is None:
        return torch.empty(size, dtype=dtype, device=plan.device)
    return pages.empty(size, dtype, plan.pages)
