"""How much of the machine's CPU others used while we measured: a timing beside a busy neighbour is no timing."""

from __future__ import annotations

import os
from pathlib import Path

BUSY_ABOVE = 0.05  # share of the machine's CPU time; a timing that met more is flagged
_STAT = Path("/proc/stat")


class OthersShare:
    """From construction on: CPU time of everybody but this process and its children, as a share of all there was."""

    def __init__(self) -> None:
        self.begin = _read()

    def share(self) -> float | None:
        """0 to 1; None where the system does not tell."""
        if self.begin is None:
            return None
        end = _read()
        assert end is not None
        total, busy, own = (b - a for a, b in zip(self.begin, end, strict=True))
        return max(0.0, busy - own) / total if total > 0 else 0.0


def _read() -> tuple[float, float, float] | None:
    """Seconds so far: of all processors, of them busy or stolen, of them used by this process."""
    if not _STAT.exists():
        return None
    fields = [int(field) for field in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    ticks = os.sysconf("SC_CLK_TCK")
    idle = fields[3] + fields[4]
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return sum(fields) / ticks, (sum(fields) - idle) / ticks, own


def others_words(share: float | None) -> str:
    """A share of the CPU in a sentence."""
    return "unknown" if share is None else f"{share:.0%}"
