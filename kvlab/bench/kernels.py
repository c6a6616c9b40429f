"""How fast attention reads keys and values, over rows and over blocks, beside what the memory gives.

Sequences are all equally long. A pass goes through as many layers as no cache holds. Whatever is measured is looked
at first: each kernel's result of one call is compared with the plain formula.

B sequences, P table entries, T new tokens, Q query heads, H key/value heads, D head size, N tokens; pools: see pool.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.bench.pools import Plan, Shape, Store, empty
from kvlab.bench.timing import Spread, Work, take_turns
from kvlab.engine.kernels import Kernels
from kvlab.kernels.compiler import CompileError
from kvlab.kernels.pool import take
from kvlab.kernels.stream import stream

COPIED_TOKENS = 16  # of a run that is copied
# Relative error (root mean square) that rounding may make and a wrong result exceeds.
WORST = {"float32": 1e-4, "float16": 3e-3, "bfloat16": 2e-2}


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
    store = Store(shape, plan)
    cases = [*_bandwidths(shape, plan), *_attention(store, plan), *_moves(store, plan)]
    spreads = take_turns([(case.work, case.calls) for case in cases], plan.clock, plan.repeats, plan.least_s, progress)
    best = {case.op: case.nbytes / spread.median for case, spread in zip(cases[:2], spreads, strict=False)}
    return [_row(shape, case, spread, best) for case, spread in zip(cases, spreads, strict=True)]


def _bandwidths(shape: Shape, plan: Plan) -> list[Case]:
    """Reading one large array of numbers, in C where it can be, and copying one, as torch does it."""
    numbers = max(plan.cold_bytes, shape.kv_bytes) // 4
    source, target = (empty((numbers,), torch.float32, plan).fill_(1) for _ in range(2))
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


def _attention(store: Store, plan: Plan) -> list[Case]:
    cases = []
    for op in ("decode", "prefill"):
        for block_size in (None, *plan.block_sizes):
            for name, attention in plan.attentions.items():
                if op in plan.ops and attention.takes(op, block_size):
                    cases.append(_attends(store, name, attention.kernels, op, block_size))
    return cases


def _attends(store: Store, name: str, kernels: Kernels, op: str, block_size: int | None) -> Case:
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


def _formula(q_QD: Tensor, store: Store, table_P: NDArray[np.int32], block_size: int | None, scale: float) -> Tensor:
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


def _moves(store: Store, plan: Plan) -> list[Case]:
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
