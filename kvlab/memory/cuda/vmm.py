"""Memory on demand on a CUDA device, as kvlab/memory/vmm.py asks for it.

One handle is one page: a part of a handle cannot be mapped, and each call costs the same whatever its size. A
handle is created when its page is first mapped, or ahead of all use, and recycled until the page is dropped. It
may lie at several addresses. What a store leaves is counted, and named when it closes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from kvlab.errors import UsageError
from kvlab.memory.cuda.driver import Driver
from kvlab.memory.cuda.fence import Fence
from kvlab.memory.cuda.pool import CudaPool
from kvlab.memory.cuda.reservation import CudaReservation
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
