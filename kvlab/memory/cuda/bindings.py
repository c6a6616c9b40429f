"""The driver of an NVIDIA device, through cuda.bindings. Its context is the primary one, which torch uses too."""

from __future__ import annotations

from typing import Any

import torch

from kvlab.errors import UsageError
from kvlab.memory.cuda.driver import refusal
from kvlab.memory.host_vmm import VmmError

try:
    from cuda.bindings import driver as cuda
except ImportError as error:
    raise UsageError("device=cuda: it takes the package cuda-bindings, which is not installed") from error


class CudaDriver:
    """See Driver. UsageError: there is no such device, or it has no virtual memory management."""

    def __init__(self, ordinal: int = 0, device: torch.device | None = None) -> None:
        """`device`: of the tensors, where it is not the CUDA device of that number."""
        self.device = device or torch.device("cuda", ordinal)
        self._cuda = self._open(ordinal)
        self._context = _call("cuDevicePrimaryCtxRetain", self._cuda)
        try:
            self.set_current()
            self._property, self._access = _property(ordinal), _access(ordinal)
            minimum = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
            self.granularity = int(_call("cuMemGetAllocationGranularity", self._property, minimum))
        except BaseException:
            self.close()
            raise

    def set_current(self) -> None:
        _call("cuCtxSetCurrent", self._context)

    def reserve(self, nbytes: int) -> int:
        return int(_call("cuMemAddressReserve", nbytes, 0, 0, 0))

    def free(self, address: int, nbytes: int) -> None:
        _call("cuMemAddressFree", address, nbytes)

    def create(self, nbytes: int) -> int:
        return int(_call("cuMemCreate", nbytes, self._property, 0))

    def release(self, handle: int) -> None:
        _call("cuMemRelease", handle)

    def map(self, address: int, nbytes: int, handle: int, offset: int = 0) -> None:
        _call("cuMemMap", address, nbytes, offset, handle, 0)

    def set_access(self, address: int, nbytes: int) -> None:
        _call("cuMemSetAccess", address, nbytes, [self._access], 1)

    def unmap(self, address: int, nbytes: int) -> None:
        _call("cuMemUnmap", address, nbytes)

    def create_event(self) -> int:
        flags = cuda.CUevent_flags
        return int(_call("cuEventCreate", flags.CU_EVENT_BLOCKING_SYNC | flags.CU_EVENT_DISABLE_TIMING))

    def record(self, event: int) -> None:
        _call("cuEventRecord", event, self._stream())

    def synchronize(self, event: int) -> None:
        _call("cuEventSynchronize", event)

    def destroy_event(self, event: int) -> None:
        _call("cuEventDestroy", event)

    def free_bytes(self) -> int:
        return int(_call("cuMemGetInfo")[0])

    def close(self) -> None:
        if self._context is not None:
            _call("cuDevicePrimaryCtxRelease", self._cuda)
            self._context = None

    def _open(self, ordinal: int) -> Any:
        try:
            _call("cuInit", 0)
        except VmmError:
            raise
        except RuntimeError as error:
            raise UsageError(f"device=cuda: no CUDA driver could be loaded ({error})") from error
        device = _call("cuDeviceGet", ordinal)
        able = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        if not _call("cuDeviceGetAttribute", able, device):
            raise UsageError(f"device=cuda:{ordinal} has no virtual memory management; allowed are strategies without")
        return device

    def _stream(self) -> int:
        """The one that torch launches on in this thread."""
        return torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0


def _call(name: str, *arguments: Any) -> Any:
    error, *values = getattr(cuda, name)(*arguments)
    if error != cuda.CUresult.CUDA_SUCCESS:
        raise refusal(name, error.name)
    return values[0] if len(values) == 1 else values


def _property(ordinal: int) -> Any:
    wanted = cuda.CUmemAllocationProp()
    wanted.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = ordinal
    return wanted


def _access(ordinal: int) -> Any:
    access = cuda.CUmemAccessDesc()
    access.location = _property(ordinal).location
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access
