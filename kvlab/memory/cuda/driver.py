"""The few calls on a CUDA driver that memory on demand takes, and what its refusals mean.

Behind the protocol is a device (kvlab/memory/cuda/bindings.py) or an emulator that is as strict (emulator.py).
"""

from __future__ import annotations

from typing import Protocol

import torch

from kvlab.memory.host_vmm import VmmError

MEANINGS = {
    "CUDA_ERROR_INVALID_VALUE": "no range, size or handle that fits here: mapped already, not mapped, misaligned",
    "CUDA_ERROR_OUT_OF_MEMORY": "the device has no memory left for this; lower pool_bytes",
    "CUDA_ERROR_NO_DEVICE": "there is no CUDA device",
    "CUDA_ERROR_INVALID_DEVICE": "there is no CUDA device of that number",
    "CUDA_ERROR_INVALID_CONTEXT": "no context is current in this thread",
    "CUDA_ERROR_NOT_SUPPORTED": "the driver cannot do this; a handle is mapped whole, from its first byte",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel touched memory that was not mapped; the device cannot be used any more",
}


def refusal(call: str, error: str) -> VmmError:
    """The error of a call that the driver answered with `error`, the name of a CUresult."""
    return VmmError(call, f"{error}: {MEANINGS.get(error, 'refused by the driver')}")


class Driver(Protocol):
    """Addresses and sizes are bytes and multiples of `granularity`. Every call may raise VmmError, named after it.

    All but `set_current` need it to have been called in their thread; the thread that makes a driver has done so.
    """

    granularity: int  # bytes
    device: torch.device  # of a tensor over its memory; an emulator's memory is the host's

    def set_current(self) -> None:
        """Work on this device in the calling thread."""

    def reserve(self, nbytes: int) -> int:
        """The first of so many addresses without memory."""
        ...

    def free(self, address: int, nbytes: int) -> None:
        """Give a whole reservation back, in which nothing is mapped."""

    def create(self, nbytes: int) -> int:
        """The handle of so much physical memory."""
        ...

    def release(self, handle: int) -> None:
        """Give the memory back, once it is mapped nowhere."""

    def map(self, address: int, nbytes: int, handle: int, offset: int = 0) -> None:
        """Put a handle under addresses where nothing is: whole, any other part of it is refused. No access yet."""

    def set_access(self, address: int, nbytes: int) -> None:
        """Let the device read and write whole mappings."""

    def unmap(self, address: int, nbytes: int) -> None:
        """Take whole mappings away at once, whatever still reads them: who waits for that is the caller."""

    def create_event(self) -> int: ...

    def record(self, event: int) -> None:
        """The event happens when all that the device was asked for until now is done."""

    def synchronize(self, event: int) -> None:
        """Wait until it has happened."""

    def destroy_event(self, event: int) -> None: ...

    def free_bytes(self) -> int:
        """Physical memory of the device that nobody has."""
        ...

    def close(self) -> None:
        """Let go of the device; nothing is freed by this."""
