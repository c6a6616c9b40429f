"""A device's memory in pages. A page is a handle, created when it is first mapped, or ahead of all use."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from kvlab.errors import UsageError
from kvlab.memory.host_vmm import VmmError

if TYPE_CHECKING:
    from kvlab.memory.cuda.vmm import CudaVmm


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
            check_whole_page("physical pool", offset, self._page_bytes, self._page_bytes, self.nbytes)
            self._handles[offset] = self._vmm.driver.create(self._page_bytes)
            self._vmm.live["handles"] += 1
        return self._handles[offset]

    def place(self, offset: int, by: int) -> None:
        """The page lies at `by` more addresses."""
        self._places[offset] += by

    def drop(self, offset: int, nbytes: int) -> None:
        """Give the page at `offset` back, if it is there. ValueError: it is mapped."""
        check_whole_page("physical pool", offset, nbytes, self._page_bytes, self.nbytes)
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


def check_whole_page(what: str, offset: int, nbytes: int, page_bytes: int, limit: int) -> None:
    """ValueError: [offset, offset + nbytes) is not one of the pages of what has `limit` bytes."""
    if nbytes != page_bytes or offset % page_bytes:
        raise ValueError(f"bytes {offset}+{nbytes} of a {what}: allowed is one page of {page_bytes}")
    if offset < 0 or offset + nbytes > limit:
        raise ValueError(f"bytes {offset}+{nbytes} of a {what}: it has {limit}")
