"""Unmapping waits for the last reader: the driver takes memory away at once, and a kernel that still reads it dies.

What a device is asked for goes into a stream. A mark is an event behind all that went in so far; waiting for it
is up to the host thread that unmaps, so that a launch after the mark runs on.
"""

from __future__ import annotations

from kvlab.memory.cuda.driver import Driver


class Fence:
    """One mark; a later one takes its place, and whoever waits for that has waited for the earlier one too."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._event: int | None = None
        self._waits = False  # the mark may not have been reached

    def mark(self) -> None:
        """Behind all that the calling thread has asked for until now."""
        if self._event is None:
            self._event = self._driver.create_event()
        self._driver.record(self._event)
        self._waits = True

    def wait(self) -> None:
        """Until the mark is reached; at once where that is known."""
        if self._waits and self._event is not None:
            self._driver.synchronize(self._event)
            self._waits = False

    def settle(self) -> None:
        """Wait for all that the calling thread has asked for until now."""
        self.mark()
        self.wait()

    def close(self) -> None:
        if self._event is not None:
            self._driver.destroy_event(self._event)
            self._event, self._waits = None, False
