"""A device's addresses, and which page of which pool lies at each; whoever has a tensor over them keeps them."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import torch

from kvlab.memory.cuda.pool import CudaPool, check_whole_page
from kvlab.memory.cuda.tensor import TYPES, tensor_at
from kvlab.memory.host_vmm import VmmError

if TYPE_CHECKING:
    from kvlab.memory.cuda.vmm import CudaVmm


class CudaReservation:
    """`nbytes` of the device's addresses. A kernel that reads where nothing is mapped ends all use of the device."""

    def __init__(self, vmm: CudaVmm, nbytes: int, page_bytes: int) -> None:
        self.nbytes, self._page_bytes, self._vmm = nbytes, page_bytes, vmm
        self._mapped: dict[int, tuple[CudaPool, int]] = {}  # offset -> the page of a pool that lies there
        self._tensors = 0  # alive, with their views
        self._closed, self._reserved = False, True
        self.base = vmm.driver.reserve(nbytes)
        vmm.live["reservations"] += 1

    def map(self, offset: int, pool: CudaPool, pool_offset: int, nbytes: int) -> None:
        self._check(offset, nbytes)
        if self._mapped.get(offset) == (pool, pool_offset):
            return
        address, driver = self.base + offset, self._vmm.driver
        driver.map(address, nbytes, pool.handle(pool_offset))
        self._mapped[offset] = pool, pool_offset
        pool.place(pool_offset, 1)
        self._vmm.live["mappings"] += 1
        try:
            driver.set_access(address, nbytes)
        except VmmError:  # whoever read it now would die
            self.unmap(offset, nbytes)
            raise

    def unmap(self, offset: int, nbytes: int) -> None:
        self._check(offset, nbytes)
        if offset not in self._mapped:
            return
        self._vmm.driver.unmap(self.base + offset, nbytes)
        pool, pool_offset = self._mapped.pop(offset)
        pool.place(pool_offset, -1)
        self._vmm.live["mappings"] -= 1

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """The range from its start. Memory is gone from under it after close, but its addresses are nobody else's."""
        if self._closed:
            raise ValueError("the reservation is closed")
        if dtype not in TYPES or dtype.itemsize * math.prod(shape) > self.nbytes:
            names = ", ".join(str(known).removeprefix("torch.") for known in TYPES)
            raise ValueError(f"a tensor {shape} of {dtype}: allowed is {names}, and {self.nbytes} bytes at most")
        tensor = tensor_at(self.base, dtype, shape, self._vmm.driver.device, self._tensor_gone)
        self._tensors += 1
        return tensor

    def close(self) -> None:
        """Take away whatever is mapped; the addresses go now, or with the last tensor. Twice does nothing."""
        if self._closed:
            return
        try:
            self._vmm.insist([partial(self.unmap, offset, self._page_bytes) for offset in self._mapped])
        finally:
            self._closed = True
            self._vmm.insist([self._free_unused])

    def _tensor_gone(self) -> None:
        self._tensors -= 1
        if self._closed:
            with suppress(VmmError):  # nobody is left to be told; it stays in `live`
                self._vmm.driver.set_current()  # any thread may be the last
                self._vmm.insist([self._free_unused])
                self._vmm.insist([self._vmm.let_go])

    def _free_unused(self) -> None:
        """Give the addresses back once nobody can see them, and nothing is stuck there."""
        if self._reserved and not self._tensors and not self._mapped:
            self._vmm.driver.free(self.base, self.nbytes)
            self._reserved = False
            self._vmm.live["reservations"] -= 1

    def _check(self, offset: int, nbytes: int) -> None:
        if self._closed:
            raise ValueError("the reservation is closed")
        check_whole_page("reservation", offset, nbytes, self._page_bytes, self.nbytes)
