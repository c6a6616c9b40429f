"""What the driver's calls on memory take, by the size of a page; and while a kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from common import MIB

CALLS = ("create", "map", "set_access", "unmap", "release")
BUSY_CYCLES = 2_000_000_000  # about a second


def run(report: Any) -> None:
    if report.rehearsal:
        from kvlab.memory.cuda.emulator import Emulator

        driver: Any = Emulator(1 << 22, 4096)
        sizes, count = (4096, 8192), 4
    else:
        from kvlab.memory.cuda.bindings import CudaDriver

        torch.cuda.init()
        driver = CudaDriver()
        sizes, count = tuple(size * MIB for size in (2, 4, 8, 16, 32)), 64
    report.add(granularity=driver.granularity)
    for nbytes in sizes:
        report.add(**_lives(driver, nbytes, count, busy=False))
    if not report.rehearsal:
        report.add(**_lives(driver, sizes[0], count, busy=True))
    driver.close()


def _lives(driver: Any, nbytes: int, count: int, busy: bool) -> dict[str, Any]:
    """So many pages made, mapped and given back, next to one another."""
    took: dict[str, list[int]] = {name: [] for name in CALLS}
    if busy:
        torch.cuda._sleep(BUSY_CYCLES)
    base = driver.reserve(nbytes * count)
    handles = [_timed(took["create"], lambda: driver.create(nbytes)) for _ in range(count)]
    for index, handle in enumerate(handles):
        address = base + index * nbytes
        _timed(took["map"], lambda address=address, handle=handle: driver.map(address, nbytes, handle))
        _timed(took["set_access"], lambda address=address: driver.set_access(address, nbytes))
    for index, handle in enumerate(handles):
        _timed(took["unmap"], lambda index=index: driver.unmap(base + index * nbytes, nbytes))
        _timed(took["release"], lambda handle=handle: driver.release(handle))
    driver.free(base, nbytes * count)
    if busy:
        torch.cuda.synchronize()
    us = {name: np.array(ns) / 1e3 for name, ns in took.items()}
    medians = {f"{name}_us": round(float(np.median(us[name])), 2) for name in CALLS}
    return {
        "page_bytes": nbytes,
        "busy": busy,
        **medians,
        **{f"{name}_p99_us": round(float(np.percentile(us[name], 99)), 2) for name in CALLS},
    }


def _timed(into: list[int], call: Callable[[], Any]) -> Any:
    begin = perf_counter_ns()
    result = call()
    into.append(perf_counter_ns() - begin)
    return result
