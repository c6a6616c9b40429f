"""What a run may take: seconds, and bytes of memory. The process that started it looks, and ends it.

Resident memory counts, as the system sees it: address space that is only reserved, as virtual-memory strategies and
CUDA do, costs nothing.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass

from kvlab.errors import UsageError
from kvlab.harness.validate import size
from kvlab.resident import resident_bytes

SECONDS_BETWEEN_LOOKS = 0.1
SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Limits:
    """None: no limit."""

    seconds: float | None = None
    bytes: int | None = None

    @classmethod
    def of(cls, time: str | None, memory: str | None) -> Limits:
        """From what was typed: 90, 90s, 30m, 2h and 4GiB. Raises UsageError."""
        limits = cls(
            None if time is None else _seconds(time), None if memory is None else size("--memory-limit", memory)
        )
        if limits.bytes and resident_bytes(os.getpid()) is None:
            raise UsageError("--memory-limit: this system does not say how much memory a process has; leave it out")
        return limits

    @property
    def period(self) -> float | None:
        """Seconds between two looks; None: there is nothing to look at."""
        return SECONDS_BETWEEN_LOOKS if self.seconds or self.bytes else None

    def broken(self, process: int, seconds: float) -> str:
        """Which limit a run is over, in words for its result; empty if it keeps them."""
        if self.seconds and seconds > self.seconds:
            return f"time-out: not done after {self.seconds:g} s (--time-limit)"
        if self.bytes and (resident := resident_bytes(process) or 0) > self.bytes:
            return f"out of memory: {_mib(resident)} resident, allowed is {_mib(self.bytes)} (--memory-limit)"
        return ""

    def crowded(self, process: int) -> bool:
        """Whether what a worker kept of its last run could count against the next."""
        return self.bytes is not None and (resident_bytes(process) or 0) > self.bytes // 2


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h)?", text)
    amount = float(match[1]) * SECONDS[match[2] or ""] if match else 0.0
    if not 0 < amount < math.inf:
        raise UsageError(f"--time-limit {text}: allowed is a time such as 90s, 30m or 2h")
    return amount


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
