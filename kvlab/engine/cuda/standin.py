"""A CPU in the place of a CUDA device: the same engine, the same kernels interpreted, an emulated driver.

For tests and rehearsals where there is no GPU. Nothing that it takes says anything about a GPU's speed.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.attentions.gpu import KvlabGpu
from kvlab.engine.kernels import Kernels, Kvlab, build_kernels
from kvlab.errors import UsageError
from kvlab.kernels.gpu.checks import interpreted
from kvlab.kernels.gpu.decode import _decode
from kvlab.memory.build import build_store
from kvlab.memory.cuda.emulator import Emulator
from kvlab.memory.cuda.vmm import CudaVmm
from kvlab.memory.store import Store
from kvlab.model.shape import Shape
from kvlab.strategy import Strategy


class Standin:
    """See Platform. `granularity`: bytes that its driver maps at least."""

    def __init__(self, total_bytes: int = 64 << 20, granularity: int = 4096) -> None:
        if not interpreted(_decode):
            raise UsageError("a stand-in for a GPU: allowed with TRITON_INTERPRET=1 only, set before the start")
        self.device, self.total_bytes, self.granularity = torch.device("cpu"), total_bytes, granularity
        self.driver: Emulator | None = None  # of the last store, where memory is mapped on demand

    def build_kernels(self, node: dict[str, Any]) -> Kernels:
        kernels = build_kernels(node)
        return KvlabGpu("cpu") if isinstance(kernels, Kvlab) else kernels

    def build_store(self, strategy: Strategy, shape: Shape, dtype: torch.dtype) -> Store:
        self.driver = Emulator(self.total_bytes, self.granularity) if strategy.virtual else None
        vmm = CudaVmm(self.driver) if self.driver else None
        return build_store(strategy, shape.layers, shape.kv_heads, shape.head_dim, dtype, vmm=vmm)

    def buffer(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def send(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.copy())

    def send_into(self, there: Tensor, here: Tensor) -> None:
        there.copy_(here)

    def read(self, there: Tensor) -> NDArray[Any]:
        values: NDArray[Any] = there.numpy().copy()
        return values

    def mark(self) -> Any:
        return perf_counter_ns()

    def between_ns(self, begin: Any, end: Any) -> int:
        return int(end - begin)

    def graph_memory(self) -> Any:
        return None

    def capture(self, function: Callable[[], Tensor], memory: Any) -> Replayed:
        return Replayed(function)

    def used_bytes(self) -> int:
        return self.total_bytes - self.driver.free_bytes() if self.driver else 0

    def describe(self) -> dict[str, Any]:
        return {"name": "none: a CPU in its place, kernels interpreted, driver emulated"}


class Replayed:
    """See Graph: calls the function again, and puts what it returns where it was the first time."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        function()
        self._function, self.result = function, function()

    @torch.inference_mode()
    def replay(self) -> None:
        self.result.copy_(self._function())
