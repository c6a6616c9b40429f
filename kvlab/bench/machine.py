"""What this machine's CPU and memory do, part by part: reading, matrix products, attention, virtual memory, copies.

Every time is the median of some repeats, in seconds, of what the engine itself calls. With one thread it is the CPU
time of that thread, which is the wall's on a machine that has nothing else to do, and hardly grows on one that has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from statistics import median
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kvlab.engine.kernels import Kernels
from kvlab.memory.dense import DenseStore
from kvlab.memory.host_vmm import PhysicalPool, Reservation
from kvlab.model.llama import Llama
from kvlab.moves import Copy
from kvlab.strategy import ceil_div

REPEATS = 5
READ_BYTES = 1 << 28  # several times what caches hold
MOST_KV_BYTES = 3 << 28


def clock() -> float:
    return thread_time() if torch.get_num_threads() == 1 else perf_counter()


def time_of(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds; the first call does not count."""
    work()
    return median(_once(work) for _ in range(repeats))


def _once(work: Callable[[], object]) -> float:
    begin = clock()
    work()
    return clock() - begin


@torch.inference_mode()
def read_bytes_per_s() -> float:
    """Bandwidth of a sum over memory that is in no cache."""
    numbers = torch.ones(READ_BYTES // 4)
    return READ_BYTES / time_of(numbers.sum)


@torch.inference_mode()
def products(model: Llama, rows: Sequence[int]) -> list[tuple[float, float]]:
    """For each number of rows, seconds of all layers' matrices one after another, and of the matrix of logits.

    They take turns, so that what slows the machine down for a while slows all of them down.
    """
    works = [work for count in rows for work in _products(model, count)]
    for work in works:
        work()
    rounds = [[_once(work) for work in works] for _ in range(REPEATS)]
    times = [median(times) for times in zip(*rounds, strict=True)]
    return list(zip(times[::2], times[1::2], strict=True))


def _products(model: Llama, rows: int) -> tuple[Callable[[], object], Callable[[], object]]:
    shape, dtype = model.shape, model.embed_VC.dtype
    x_TC = torch.ones(rows, shape.hidden, dtype=dtype)
    q_TX = torch.ones(rows, shape.q_heads * shape.head_dim, dtype=dtype)
    x_TF = torch.ones(rows, shape.ffn, dtype=dtype)

    def body() -> None:
        for layer in model.layers:
            layer.qkv(x_TC)
            layer.out(q_TX)
            layer.gate_up(x_TC)
            layer.down(x_TF)

    return body, lambda: model.head(x_TC)


class Attended(NamedTuple):
    """Sequences whose keys and values are stored: `batch` of `length` tokens."""

    store: DenseStore
    kernels: Kernels
    model: Llama
    batch: int
    length: int

    def decode(self, block_size: int | None) -> float:
        """Seconds of attention in all layers for one query of each sequence."""
        return self._seconds(self.batch, self.length, 1, block_size)

    def prompt(self, length: int, block_size: int | None) -> float:
        """Seconds of attention in all layers for one prompt of that length."""
        return self._seconds(1, length, length, block_size)

    @torch.inference_mode()
    def _seconds(self, batch: int, length: int, new: int, block_size: int | None) -> float:
        """Each sequence's last `new` tokens; over rows, or over blocks that lie in no order."""
        shape, stop_B = self.model.shape, np.full(batch, length, np.int64)
        view = self.kernels.make_view(self._table(block_size)[:batch], stop_B - new, stop_B, block_size)
        dtype = self.store.layer(0)[0].dtype
        q_TQD = torch.ones(batch * new, shape.q_heads, shape.head_dim, dtype=dtype)

        def attend() -> None:
            for index in range(shape.layers):
                k_SHD, v_SHD = self.store.layer(index)
                self.kernels.attend(q_TQD, k_SHD, v_SHD, view, shape.head_dim**-0.5)

        return time_of(attend, REPEATS if new == 1 else 3)

    def _table(self, block_size: int | None) -> NDArray[np.int32]:
        if block_size is None:
            return (np.arange(self.batch, dtype=np.int32) * self.length)[:, None]
        width = ceil_div(self.length, block_size)
        blocks = np.random.default_rng(0).permutation(self.batch * self.length // block_size)
        return blocks.astype(np.int32)[: self.batch * width].reshape(self.batch, width)


def attended(stack: ExitStack, model: Llama, kernels: Kernels, batch: int, length: int) -> Attended:
    """Memory for that, until the stack closes; fewer sequences where they would not fit."""
    shape, dtype = model.shape, model.embed_VC.dtype
    row_bytes = 2 * shape.layers * length * shape.kv_heads * shape.head_dim * dtype.itemsize
    batch = max(1, min(batch, MOST_KV_BYTES // row_bytes))
    store = stack.enter_context(
        closing(DenseStore(shape.layers, batch * length, shape.kv_heads, shape.head_dim, dtype))
    )
    for index in range(shape.layers):
        for x_SHD in store.layer(index):
            x_SHD.fill_(0.5)
    return Attended(store, kernels, model, batch, length)


def copies(place: Attended) -> tuple[float, float]:
    """Seconds of a copy of one slot, and of each further one; in all layers."""
    many = place.batch * place.length // 2
    one, all_ = (time_of(lambda n=n: place.store.apply([Copy(0, many, n)])) for n in (1, many))  # type: ignore[misc]
    return one, max(0.0, all_ - one) / (many - 1)


def pages(page_bytes: int, count: int = 16) -> dict[str, float]:
    """Seconds of calls on one page, as a store makes them: mapped with memory and without, unmapped, dropped."""
    pool, place = PhysicalPool(count * page_bytes), Reservation(count * page_bytes)
    with closing(pool), closing(place):
        offsets = [index * page_bytes for index in range(count)]
        times: dict[str, list[float]] = {"fresh": [], "map": [], "unmap": [], "drop": []}

        def each(name: str, call: Callable[[int], object]) -> None:
            times[name] += [_once(lambda offset=offset: call(offset)) for offset in offsets]  # type: ignore[misc]

        def put(offset: int) -> Any:
            return place.map(offset, pool, offset, page_bytes)

        for _ in range(REPEATS):
            each("fresh", put)
            each("unmap", lambda offset: place.unmap(offset, page_bytes))
            each("map", put)
            each("unmap", lambda offset: place.unmap(offset, page_bytes))
            each("drop", lambda offset: pool.drop(offset, page_bytes))
    return {name: median(seconds) for name, seconds in times.items()}
