"""What memory a process has and had, as Linux says; None on systems that do not."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def resident_bytes(process: int) -> int | None:
    """What it has now; None, too, where it has ended."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def forget_peak() -> None:
    """From now on the peak of this process is what it has now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int | None:
    """The most that this process had at once."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None
