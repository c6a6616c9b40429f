"""The engine over a real model and real memory, put together from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kvlab.build import build_axis
from kvlab.engine.clock import StepClock, WallClock
from kvlab.engine.engine import Engine
from kvlab.engine.executor import RealExecutor
from kvlab.engine.kernels import build_kernels
from kvlab.engine.lanes import Lanes
from kvlab.engine.scheduler import Scheduler
from kvlab.memory.build import build_store
from kvlab.model.llama import Llama
from kvlab.record.recorder import Recorder
from kvlab.request import Request
from kvlab.strategy import Strategy


@contextmanager
def real_engine(
    config: dict[str, Any],
    model: Llama,
    strategy: Strategy,
    requests: list[Request],
    *,
    eos: tuple[int, ...] = (),
    progress: Callable[[int], None] | None = None,
) -> Iterator[Engine[RealExecutor]]:
    """Opens the store and warms it and the model up; the clock starts when the body does."""
    if threads := config["engine"].get("threads"):
        torch.set_num_threads(threads)
    dtype = getattr(torch, config["dtype"])
    store = build_store(strategy, model.shape.layers, model.shape.kv_heads, model.shape.head_dim, dtype)
    try:
        lanes = Lanes(strategy.memory.max_seqs, strategy.memory.max_len)
        scheduler = Scheduler(
            strategy,
            lanes,
            admission=build_axis(config, "admission"),
            victim=build_axis(config, "victim"),
            forecast=build_axis(config, "forecast"),
            eos=eos,
        )
        executor = RealExecutor(model, store, strategy, lanes, build_kernels(config["attention"], config["device"]))
        executor.warm_up()
        clock = StepClock() if config["engine"]["clock"] == "steps" else WallClock()
        yield Engine(requests, scheduler, executor, clock, Recorder(strategy, store.committed_bytes), progress)
    finally:
        store.close()
