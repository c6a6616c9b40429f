"""What the engine asks of the machine that it runs on, beyond tensors: a CUDA device, or a stand-in on the CPU.

What is asked for goes into one stream, in order; the host goes on meanwhile. A step ends when its tokens are read,
which waits for all of it: buffers that a step filled are free again in the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.kernels import Kernels
from kvlab.errors import UsageError
from kvlab.memory.store import Store
from kvlab.model.shape import Shape
from kvlab.strategy import Strategy


class Graph(Protocol):
    """A function whose launches were recorded once, over tensors that stay where they are."""

    result: Tensor  # what the function returned; `replay` fills it anew

    def replay(self) -> None: ...


class Platform(Protocol):
    device: torch.device
    total_bytes: int  # of memory

    def build_kernels(self, node: dict[str, Any]) -> Kernels:
        """What the node `attention` names. UsageError: it cannot run here."""
        ...

    def build_store(self, strategy: Strategy, shape: Shape, dtype: torch.dtype) -> Store: ...

    def buffer(self, nbytes: int) -> Tensor:
        """Bytes on the host, of which `send_into` makes copies without waiting."""
        ...

    def send(self, array: NDArray[Any]) -> Tensor:
        """The array on the device, in time for what is asked for next."""
        ...

    def send_into(self, there: Tensor, here: Tensor) -> None:
        """Copy a buffer to the device likewise; it may be changed once the step is over."""

    def read(self, there: Tensor) -> NDArray[Any]:
        """The values on the host, once all that was asked for is done."""
        ...

    def mark(self) -> Any:
        """A point in what is asked for."""

    def between_ns(self, begin: Any, end: Any) -> int:
        """Nanoseconds that the device took from mark to mark, both reached."""
        ...

    def graph_memory(self) -> Any:
        """What graphs that are never replayed at once may share."""

    def capture(self, function: Callable[[], Tensor], memory: Any) -> Graph:
        """Record the launches of a function, which is called twice."""
        ...

    def used_bytes(self) -> int:
        """Of the memory, by everybody, as the driver says."""
        ...

    def describe(self) -> dict[str, Any]:
        """Which device, driver and clocks, for the result."""
        ...


def open_platform(device: str) -> Platform:
    """The CUDA device `cuda` or `cuda:N`. UsageError: there is none of that number."""
    from kvlab.engine.cuda.device import CudaPlatform

    return CudaPlatform(ordinal_of(device))


def memory_of(device: str) -> int:
    """Bytes of memory that the device has; takes none of it. UsageError: there is no such device."""
    return int(torch.cuda.get_device_properties(ordinal_of(device)).total_memory)


def ordinal_of(device: str) -> int:
    """N of cuda:N. UsageError: there is no such device."""
    found = re.fullmatch(r"cuda(?::(\d+))?", device)
    if found is None:
        raise UsageError(f"device={device}: allowed is cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise UsageError(f"device={device}: torch {torch.__version__} sees no such device; allowed here is cpu")
    ordinal = int(found[1] or 0)
    if ordinal >= torch.cuda.device_count():
        raise UsageError(f"device={device}: allowed here are cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    return ordinal
