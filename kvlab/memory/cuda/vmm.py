"""Memory on demand on a CUDA device, as kvlab/memory/vmm.py asks for it.

One handle is one page: a part of a handle cannot be mapped, and each call costs the same whatever its size. A
handle is created when its page is first mapped, or ahead of all use, and recycled until the page is dropped. It
may lie at several addresses. What a store leaves is counted, and named when it closes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

import torch

from kvlab.errors import UsageError
from kvlab.memory.cuda.driver import Driver
from kvlab.memory.cuda.fence import Fence
from kvlab.memory.cuda.tensor import TYPES, tensor_at
from kvlab.memory.host_vmm import VmmError

UVM_PAGES = (64 << 10, 128 << 10, 256 << 10)  # bytes: what a changed driver could map


class CudaVmm:
    """A device's memory for one store. `ahead`: every handle of a pool is created with it."""

    def __init__(self, driver: Driver, ahead: bool = False) -> None:
        self.driver, self.ahead = driver, ahead
        self.live: Counter[str] = Counter()  # handles, mappings, reservations
        self._fence = Fence(driver)
        self._open = True
        self._refused: VmmError | None = None  # the first that `insist` met

    def check_page(self, page_bytes: int, sliced_bytes: int) -> None:
        unit = self.driver.granularity
        if page_bytes > 0 and page_bytes % unit == 0:
            return
        text = (
            f"page_group_bytes={page_bytes}: allowed here are multiples of {unit}, which the CUDA driver maps at least"
        )
        if page_bytes in UVM_PAGES:
            text += (
                f"; {page_bytes >> 10} KiB take the changed open-source UVM driver of the vAttention paper. "
                f"page_group_bytes={unit} with strategy.page_layout=sliced has {unit / sliced_bytes:,.1f} tokens"
            )
        raise UsageError(text)

    def pool(self, nbytes: int, page_bytes: int) -> CudaPool:
        self._check_whole("physical pool", nbytes, page_bytes)
        return CudaPool(self, nbytes, page_bytes)

    def reservation(self, nbytes: int, page_bytes: int) -> CudaReservation:
        self._check_whole("reservation", nbytes, page_bytes)
        return CudaReservation(self, nbytes, page_bytes)

    def enter_thread(self) -> None:
        self.driver.set_current()

    def mark(self) -> None:
        self._fence.mark()

    def wait(self) -> None:
        self._fence.wait()

    def settle(self) -> None:
        self.insist([self._fence.settle])

    def close(self) -> None:
        """A reservation over which a tensor lives goes with that tensor."""
        if not self._open:
            return
        self._open = False
        with ExitStack() as last:  # all three, the last one first
            last.callback(self._check_left)
            last.callback(self.insist, [self.let_go])
            last.callback(self.insist, [self._fence.close])

    def let_go(self) -> None:
        """Of the device, once the store is closed and the last tensor over its memory gone."""
        if not self._open and not self.live["reservations"]:
            self.driver.close()

    def _check_whole(self, what: str, nbytes: int, page_bytes: int) -> None:
        if page_bytes <= 0 or page_bytes % self.driver.granularity or nbytes < 0 or nbytes % page_bytes:
            unit = self.driver.granularity
            raise ValueError(
                f"a {what} of {nbytes} bytes in pages of {page_bytes}: allowed are whole pages, multiples of {unit}"
            )

    def _check_left(self) -> None:
        left = [f"{self.live[name]} {name}" for name in ("handles", "mappings") if self.live[name]]
        if left:
            after = f", after {self._refused}" if self._refused else ""
            raise VmmError("close", f"{', '.join(left)} left{after}")

    def insist(self, calls: list[Callable[[], None]]) -> None:
        """Make all calls, a refused one twice: one refusal leaves nothing. VmmError, at the end: the first of them."""
        first: VmmError | None = None
        for _ in range(2):
            trying, calls = calls, []
            for call in trying:
                try:
                    call()
                except VmmError as error:
                    first = first or error
                    calls.append(call)
        self._refused = self._refused or first
        if first is not None:
            raise first


class CudaPool:
    """`nbytes` of the device's memory, in pages of which each is a handle."""

    def __init__(self, vmm: CudaVmm, nbytes: int, page_bytes: int) -> None:
        free = vmm.driver.free_bytes()
        if nbytes > free:
            raise UsageError(
                f"pool of {nbytes} bytes: allowed is at most what is free on the device, {free}; lower pool_bytes"
            )
        self.nbytes, self._page_bytes, self._vmm = nbytes, page_bytes, vmm
        self._closed = False
        self._handles: dict[int, int] = {}  # offset of a page -> its handle
        self._places: Counter[int] = Counter()  # offset of a page -> addresses at which it lies
        if vmm.ahead:
            self._create_all()

    def committed_bytes(self) -> int:
        return len(self._handles) * self._page_bytes

    def handle(self, offset: int) -> int:
        """Of the page at `offset`, created where it is not there. ValueError: the pool is closed."""
        if self._closed:
            raise ValueError("the pool is closed")
        if offset not in self._handles:
            _check("physical pool", offset, self._page_bytes, self._page_bytes, self.nbytes)
            self._handles[offset] = self._vmm.driver.create(self._page_bytes)
            self._vmm.live["handles"] += 1
        return self._handles[offset]

    def place(self, offset: int, by: int) -> None:
        """The page lies at `by` more addresses."""
        self._places[offset] += by

    def drop(self, offset: int, nbytes: int) -> None:
        """Give the page at `offset` back, if it is there. ValueError: it is mapped."""
        _check("physical pool", offset, nbytes, self._page_bytes, self.nbytes)
        if self._places[offset]:
            raise ValueError(f"page at {offset} of the physical pool is mapped at {self._places[offset]} addresses")
        if offset in self._handles:
            self._vmm.driver.release(self._handles[offset])
            del self._handles[offset]
            self._vmm.live["handles"] -= 1

    def close(self) -> None:
        """Release every handle; the driver keeps the memory of those that are mapped. Twice does nothing."""
        self._closed = True
        self._places.clear()
        self._vmm.insist([partial(self.drop, offset, self._page_bytes) for offset in self._handles])

    def _create_all(self) -> None:
        try:
            for offset in range(0, self.nbytes, self._page_bytes):
                self.handle(offset)
        except VmmError:
            self.close()
            raise


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
        _check("reservation", offset, nbytes, self._page_bytes, self.nbytes)


def _check(what: str, offset: int, nbytes: int, page_bytes: int, limit: int) -> None:
    if nbytes != page_bytes or offset % page_bytes:
        raise ValueError(f"bytes {offset}+{nbytes} of a {what}: allowed is one page of {page_bytes}")
    if offset < 0 or offset + nbytes > limit:
        raise ValueError(f"bytes {offset}+{nbytes} of a {what}: it has {limit}")
