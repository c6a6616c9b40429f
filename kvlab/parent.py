"""Processes that end with the one that started them, however that one ends."""

from __future__ import annotations

import contextlib
import ctypes
import signal


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """A run whose parent is gone would disturb the timings of the next one (Linux only). number: what ends it."""
    with contextlib.suppress(OSError, AttributeError):
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, int(number))
