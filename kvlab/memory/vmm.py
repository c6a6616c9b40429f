"""What a store with memory on demand asks of the system under it: the host's, or a device's.

A Vmm belongs to one store. Its pools and reservations take whole pages, of one size, at multiples of it.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from kvlab.errors import UsageError
from kvlab.memory.host_vmm import PAGE_BYTES, PhysicalPool, Reservation


class Pool(Protocol):
    """Physical memory, in pages that are there from when they are first mapped until they are dropped."""

    def committed_bytes(self) -> int:
        """Of the pages that are there; 0 once closed."""
        ...

    def drop(self, offset: int, nbytes: int) -> None:
        """Give an unmapped page back, if it is there."""

    def close(self) -> None: ...


class Place(Protocol):
    """A range of addresses that stays the same; memory comes and goes under it."""

    def map(self, offset: int, pool: Any, pool_offset: int, nbytes: int) -> None:
        """Put a page of the pool there, where nothing or that very page is. VmmError: undone, or lost its memory."""

    def unmap(self, offset: int, nbytes: int) -> None:
        """Take away what is mapped there, if anything is."""

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """The range from its start."""
        ...

    def close(self) -> None: ...


class Vmm(Protocol):
    """Where a store's memory comes from."""

    ahead: bool  # all pages of a pool are there from the start

    def check_page(self, page_bytes: int, sliced_bytes: int) -> None:
        """UsageError: pages of that size cannot be mapped. sliced_bytes: a token's, where layers lie side by side."""

    def pool(self, nbytes: int, page_bytes: int) -> Pool: ...

    def reservation(self, nbytes: int, page_bytes: int) -> Place: ...

    def enter_thread(self) -> None:
        """Once more in each thread, before it maps."""

    def mark(self) -> None:
        """What was asked of the device until now may read what is mapped."""

    def wait(self) -> None:
        """Until that has been done: whoever unmaps must wait."""

    def settle(self) -> None:
        """Until everything has been done: before all of it is unmapped."""

    def close(self) -> None:
        """After the pools and reservations. VmmError: something is left of them."""


class HostVmm:
    """The operating system's virtual memory; whatever reads it is done when it returns."""

    ahead = False

    def check_page(self, page_bytes: int, sliced_bytes: int) -> None:
        if page_bytes <= 0 or page_bytes % PAGE_BYTES:
            raise UsageError(f"page_group_bytes={page_bytes}: allowed are multiples of {PAGE_BYTES}")

    def pool(self, nbytes: int, page_bytes: int) -> PhysicalPool:
        return PhysicalPool(nbytes)

    def reservation(self, nbytes: int, page_bytes: int) -> Reservation:
        return Reservation(nbytes)

    def enter_thread(self) -> None:
        pass

    def mark(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def close(self) -> None:
        pass


HOST = HostVmm()
