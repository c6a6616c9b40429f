"""What a device is measured with, and what it is called."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvlab.bench.timing import Clock, cpu_clock, cuda_clock, wall_clock


class Device(NamedTuple):
    clock: Clock
    clock_words: str
    name: str  # empty on a CPU
    free_bytes: int | None  # None on a CPU: the system is asked


def open_device(device: str, threads: int) -> Device:
    """From here on torch takes so many threads."""
    torch.set_num_threads(threads)
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return Device(cuda_clock, "time between events of the device", torch.cuda.get_device_name(), free)
    if threads == 1:
        return Device(cpu_clock, "CPU time, 1 thread", "", None)
    return Device(wall_clock, f"wall time, {threads} threads", "", None)
