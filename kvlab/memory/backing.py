"""The memory of a dense pool on the host, which a thread backs while its owner does something else: imports, loads.

No Python runs in that thread between the pool's first page and its last, and until all are there nothing is mapped:
to back memory by mapping it would lock the address space, and whoever loads libraries meanwhile would wait.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from kvlab.memory.host_vmm import PhysicalPool, Reservation, round_up
from kvlab.strategy import Strategy


class Backing:
    """`nbytes`, rounded up to whole pages, every one of them there once `wait` has returned.

    beside: bytes that others are going to take until then, and that must be free as well.
    UsageError, VmmError: there is too little memory, and nothing is left of it; so does `wait`, but for what is left.
    """

    def __init__(self, nbytes: int, beside: int = 0) -> None:
        self.nbytes = round_up(nbytes)
        with ExitStack() as opened:
            self.pool = opened.enter_context(closing(PhysicalPool(self.nbytes, beside)))
            self.reservation = opened.enter_context(closing(Reservation(self.nbytes)))
            thread = opened.enter_context(ThreadPoolExecutor(1, "kvlab-backing"))  # over before the memory goes
            self._done = thread.submit(self._back)
            thread.shutdown(wait=False)  # nothing else comes
            self._opened = opened.pop_all()

    def wait(self) -> Reservation:
        """Where the memory lies."""
        self._done.result()
        return self.reservation

    def close(self) -> None:
        """Give it back, once the thread is done with it; a second time does nothing."""
        self._opened.close()

    def _back(self) -> None:
        self.pool.back()
        self.reservation.map(0, self.pool, 0, self.nbytes)


def begin_backing(strategy: Strategy, beside: int = 0) -> Backing | None:
    """What `build_store` is to be given; None: memory comes on demand. beside: as for Backing."""
    if strategy.virtual:
        return None
    memory = strategy.memory
    return Backing(round_up(strategy.pools[0].slots, memory.tile) * memory.token_bytes, beside)
