"""How fast attention reads keys and values, over rows and over blocks, beside what the memory gives.

Sequences are all equally long. A pass goes through as many layers as no cache holds. Whatever is measured is looked
at first: each kernel's result of one call is compared with the plain formula.

B sequences, P table entries, T new tokens, Q query heads, H key/value heads, D head size, N tokens; pools: see pool.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.bench import pages
from kvlab.bench.moves import Moves
from kvlab.bench.timing import Clock, Spread, Work, take_turns
from kvlab.engine.kernels import Kernels
from kvlab.kernels.compiler import CompileError
from kvlab.kernels.pool import take
from kvlab.kernels.stream import stream
from kvlab.strategy import ceil_div

LINE = 64  # bytes
COPIED_TOKENS = 16  # of a run that is copied
# Relative error (root mean square) that rounding may make and a wrong result exceeds.
WORST = {"float32": 1e-4, "float16": 3e-3, "bfloat16": 2e-2}


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


class Case(NamedTuple):
    """One thing that is measured."""

    op: str
    attention: str | None  # None: not attention's
    kernel: str
    block_size: int | None  # None: over rows, or not attention's
    work: Work  # one pass
    calls: int  # in a pass
    nbytes: int  # that a call reads and writes at least
    flops: int = 0


def measure(
    shape: Shape, plan: Plan, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[dict[str, Any]]:
    """A row for each case, bandwidths first; units are in the keys. RuntimeError: a kernel computes something else."""
    store = _Store(shape, plan)
    cases = [*_bandwidths(shape, plan), *_attention(store, plan), *_moves(store, plan)]
    spreads = take_turns([(case.work, case.calls) for case in cases], plan.clock, plan.repeats, plan.least_s, progress)
    best = {case.op: case.nbytes / spread.median for case, spread in zip(cases[:2], spreads, strict=False)}
    return [_row(shape, case, spread, best) for case, spread in zip(cases, spreads, strict=True)]


class _Store:
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


def _empty(size: tuple[int, ...], dtype: torch.dtype, plan: Plan) -> Tensor:
    if plan.pages is None:
        return torch.empty(size, dtype=dtype, device=plan.device)
    return pages.empty(size, dtype, plan.pages)


def _bandwidths(shape: Shape, plan: Plan) -> list[Case]:
    """Reading one large array of numbers, in C where it can be, and copying one, as torch does it."""
    numbers = max(plan.cold_bytes, shape.kv_bytes) // 4
    source, target = (_empty((numbers,), torch.float32, plan).fill_(1) for _ in range(2))
    name, read = _reading(source)
    return [
        Case("read", None, name, None, read, 1, 4 * numbers),
        Case("copy memory", None, "copy_", None, lambda: target.copy_(source), 1, 8 * numbers),
    ]


def _reading(source: Tensor) -> tuple[str, Work]:
    if source.device.type == "cpu":
        try:
            stream(source)
        except CompileError:
            pass  # the row names what reads instead
        else:
            return "stream, in C", lambda: stream(source)
    return "vector_norm", lambda: torch.linalg.vector_norm(source)


def _attention(store: _Store, plan: Plan) -> list[Case]:
    cases = []
    for op in ("decode", "prefill"):
        for block_size in (None, *plan.block_sizes):
            for name, attention in plan.attentions.items():
                if op in plan.ops and attention.takes(op, block_size):
                    cases.append(_attends(store, name, attention.kernels, op, block_size))
    return cases


def _attends(store: _Store, name: str, kernels: Kernels, op: str, block_size: int | None) -> Case:
    shape, table_BP = store.shape, store.table(block_size)
    new = 1 if op == "decode" else shape.length
    q_TQD, scale = store.random(shape.batch * new, shape.q_heads), shape.head_dim**-0.5
    view = kernels.make_view(table_BP, store.stop_B - new, store.stop_B, block_size)

    def work() -> None:
        for k_SHD, v_SHD in store.layers:
            kernels.attend(q_TQD, k_SHD, v_SHD, view, scale)

    o_TQD = kernels.attend(q_TQD, *store.layers[0], view, scale)
    for index in (0, shape.batch - 1):  # the last token of a sequence sees all of it
        token = (index + 1) * new - 1
        expected = _formula(q_TQD[token], store, table_BP[index], block_size, scale)
        _compare(o_TQD[token], expected, WORST[shape.dtype], f"{name}, {op}, block size {block_size}, sequence {index}")
    pairs = shape.batch * (shape.length if new == 1 else shape.length * (shape.length + 1) // 2)
    what = kernels.kernel_name(shape.torch_dtype, shape.head_dim, shape.q_heads // shape.kv_heads)
    return Case(op, name, what, block_size, work, len(store.layers), shape.kv_bytes, 4 * pairs * q_TQD[0].numel())


def _formula(q_QD: Tensor, store: _Store, table_P: NDArray[np.int32], block_size: int | None, scale: float) -> Tensor:
    position_N = np.arange(store.shape.length)
    size = block_size or store.slots
    slot_N = table_P.astype(np.int64)[position_N // size] * (block_size or 1) + position_N % size
    k_HND, v_HND = (take(x, torch.from_numpy(slot_N).to(x.device)).float().transpose(0, 1) for x in store.layers[0])
    q_HGD = q_QD.float().view(store.shape.kv_heads, -1, store.shape.head_dim)
    return ((q_HGD @ k_HND.transpose(1, 2) * scale).softmax(-1) @ v_HND).view(q_QD.shape)


def _compare(o_QD: Tensor, expected_QD: Tensor, worst: float, what: str) -> None:
    error = float(((o_QD.float() - expected_QD).square().mean() / expected_QD.square().mean()).sqrt())
    if not error < worst:
        raise RuntimeError(f"{what}: off by {error:.2g} of the result; it is not worth timing")


def _moves(store: _Store, plan: Plan) -> list[Case]:
    """A new token for each sequence, and half the slots copied to the other half, in runs."""
    shape, layers = store.shape, store.layers
    k_THD, v_THD = (store.random(shape.batch, shape.kv_heads) for _ in "kv")
    slot_T = torch.arange(shape.batch, device=store.device) * shape.length + shape.length - 1
    runs = store.slots // 2 // COPIED_TOKENS
    source_N = np.random.default_rng(0).permutation(runs) * 2 * COPIED_TOKENS
    copy_runs = plan.moves.copy_in(layers)

    def append() -> None:
        for k_SHD, v_SHD in layers:
            plan.moves.append(k_SHD, v_SHD, slot_T, k_THD, v_THD)

    def copy() -> None:
        copy_runs(source_N, source_N + COPIED_TOKENS, COPIED_TOKENS)

    cases = {
        "append": Case("append", None, "kvlab", None, append, len(layers), 2 * shape.batch * shape.slot_bytes),
        "copy": Case("copy", None, "kvlab", None, copy, len(layers), 2 * runs * COPIED_TOKENS * shape.slot_bytes),
    }
    return [case for op, case in cases.items() if op in plan.ops]


def _row(shape: Shape, case: Case, spread: Spread, best: dict[str, float]) -> dict[str, Any]:
    rate, attends = case.nbytes / spread.median, case.attention is not None
    beside = best["read" if case.op in ("read", "decode") else "copy memory"]
    return {
        "op": case.op,
        "attention": case.attention,
        "geometry": ("blocks" if case.block_size else "rows") if attends else None,
        "block_size": case.block_size,
        "kernel": case.kernel,
        **shape._asdict(),
        **{f"us_{name}": round(1e6 * seconds, 3) for name, seconds in spread._asdict().items()},
        "gb_per_s": round(rate / 1e9, 3),
        "share_of_bandwidth": None if case.op == "prefill" else round(rate / beside, 4),  # what computing bounds
        "tflop_per_s": round(case.flops / spread.median / 1e12, 5) if attends else None,
    }
