"""The engine over a real model and real memory, put together from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kvlab.build import build_axis
from kvlab.engine.clock import StepClock, WallClock
from kvlab.engine.cuda.platform import Platform, open_platform
from kvlab.engine.engine import Engine
from kvlab.engine.executor import RealExecutor
from kvlab.engine.kernels import build_kernels
from kvlab.engine.lanes import Lanes
from kvlab.engine.scheduler import Scheduler
from kvlab.engine.settings import Settings
from kvlab.engine.speculation import speculation_of
from kvlab.memory.backing import Backing
from kvlab.memory.build import build_store
from kvlab.memory.store import Store
from kvlab.model.llama import Llama
from kvlab.record.memory_map import MemoryMap
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
    platform: Platform | None = None,
    backing: Backing | None = None,
) -> Iterator[Engine[RealExecutor]]:
    """Opens the store and warms it and the model up; the clock starts when the body does.

    The model lies on config["device"]; platform: what stands for it, None: what it names. backing: the pool's memory,
    begun before; it goes with the engine.
    """
    if threads := config["engine"].get("threads"):
        torch.set_num_threads(threads)
    dtype = getattr(torch, config["dtype"])
    if platform is None and config["device"] != "cpu":
        platform = open_platform(config["device"])
    if platform is None:
        shape = model.shape
        store = build_store(strategy, shape.layers, shape.kv_heads, shape.head_dim, dtype, backing=backing)
    else:
        store = platform.build_store(strategy, model.shape, dtype)
    try:
        lanes = Lanes(strategy.memory.max_seqs, strategy.memory.max_len)
        scheduler = Scheduler(
            strategy,
            lanes,
            admission=build_axis(config, "admission"),
            victim=build_axis(config, "victim"),
            forecast=build_axis(config, "forecast"),
            preemption=build_axis(config, "preemption"),
            settings=Settings.of(config["engine"]),
            speculation=speculation_of(config),
            eos=eos,
        )
        executor = _executor(config, model, store, strategy, lanes, platform)
        executor.warm_up()
        clock = StepClock() if config["engine"]["clock"] == "steps" else WallClock()
        seen = MemoryMap.of(strategy, config["engine"].get("memory_map", 0))
        recorder = Recorder(strategy, store.committed_bytes, memory_map=seen)
        yield Engine(requests, scheduler, executor, clock, recorder, progress)
    finally:
        store.close()


def _executor(
    config: dict[str, Any], model: Llama, store: Store, strategy: Strategy, lanes: Lanes, platform: Platform | None
) -> RealExecutor:
    if platform is None:
        kernels = build_kernels(config["attention"], tile=strategy.memory.tile)
        return RealExecutor(model, store, strategy, lanes, kernels)
    from kvlab.engine.cuda.executor import DeviceExecutor  # and with it triton

    kernels, graphs = platform.build_kernels(config["attention"]), config["engine"].get("cuda_graphs", True)
    return DeviceExecutor(model, store, strategy, lanes, kernels, platform, graphs)
