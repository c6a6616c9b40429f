"""A CUDA device, as the engine asks for it: pinned buffers, events, graphs, and what nvidia-smi says of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.kernels import Kernels, build_kernels
from kvlab.memory.build import build_store
from kvlab.memory.store import Store
from kvlab.model.shape import Shape
from kvlab.strategy import Strategy

QUERIES = (
    "name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.draw",
    "power.limit", "temperature.gpu",
)  # fmt: skip
SECONDS_TO_ANSWER = 20


class CudaPlatform:
    """See Platform. The device becomes the current one of the process."""

    def __init__(self, ordinal: int = 0) -> None:
        torch.cuda.set_device(ordinal)
        self.device = torch.device("cuda", ordinal)
        self.total_bytes = int(torch.cuda.get_device_properties(ordinal).total_memory)
        self._aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # one: each has a workspace of its own
        self._answer = self.buffer(4096)

    def build_kernels(self, node: dict[str, Any]) -> Kernels:
        return build_kernels(node, str(self.device))

    def build_store(self, strategy: Strategy, shape: Shape, dtype: torch.dtype) -> Store:
        return build_store(strategy, shape.layers, shape.kv_heads, shape.head_dim, dtype, str(self.device))

    def buffer(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def send(self, array: NDArray[Any]) -> Tensor:
        here = torch.empty(array.shape, dtype=torch.from_numpy(array[:0]).dtype, pin_memory=True)
        here.numpy()[:] = array
        return here.to(self.device, non_blocking=True)  # torch keeps `here` until it is copied

    def send_into(self, there: Tensor, here: Tensor) -> None:
        there.copy_(here, non_blocking=True)

    def read(self, there: Tensor) -> NDArray[Any]:
        if self._answer.numel() < there.nbytes:
            self._answer = self.buffer(there.nbytes)
        here = self._answer[: there.nbytes].view(there.dtype).view(there.shape)
        here.copy_(there, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        values: NDArray[Any] = here.numpy().copy()
        return values

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between_ns(self, begin: Any, end: Any) -> int:
        return int(begin.elapsed_time(end) * 1e6)

    def graph_memory(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], Tensor], memory: Any) -> CudaGraph:
        return CudaGraph(function, memory, self._aside)

    def used_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        return int(total - free)

    def describe(self) -> dict[str, Any]:
        found = torch.cuda.get_device_properties(self.device)
        return {
            "name": found.name,
            "capability": f"{found.major}.{found.minor}",
            "multiprocessors": found.multi_processor_count,
            "total_bytes": self.total_bytes,
            "cuda": torch.version.cuda,
            **nvidia_smi(self.device.index),
        }


class CudaGraph:
    """See Graph. Other threads may call the driver while it is recorded."""

    def __init__(self, function: Callable[[], Tensor], pool: Any, aside: torch.cuda.Stream) -> None:
        here = torch.cuda.current_stream()
        aside.wait_stream(here)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(aside):
            function()  # what is compiled, chosen and allocated at first is not for the graph
            aside.synchronize()
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self.result = function()
            finally:
                self._graph.capture_end()
        here.wait_stream(aside)

    def replay(self) -> None:
        self._graph.replay()


def nvidia_smi(ordinal: int) -> dict[str, str]:
    """Driver, clocks and power as they are now; empty where the program is not there or says nothing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--id={ordinal}", f"--query-gpu={','.join(QUERIES)}", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS_TO_ANSWER).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(QUERIES, (value.strip() for value in told.split("\n")[0].split(",")), strict=False))
