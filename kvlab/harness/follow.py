"""What a person and W&B see of a sweep while it runs. Where no terminal is, nothing: its end says it all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.harness import rundir

if TYPE_CHECKING:
    from kvlab.harness.manifest import Manifest
    from kvlab.harness.progress import Bar
    from kvlab.harness.tracking import Tracker


class Follow:
    """Listens to the runs of a sweep."""

    def __init__(self, manifest: Manifest, bar: Bar, tracker: Tracker) -> None:
        self.manifest, self.bar, self.tracker = manifest, bar, tracker
        self.before = len(manifest.runs) - manifest.count("waiting")  # ended when the sweep started
        self.shares: dict[Path, float] = {}  # of the runs under way, what part is done
        self._move()

    def began(self, directory: Path) -> Path:
        """Takes note of a run, and passes it on."""
        self.shares[directory] = 0.0
        self._move()
        return directory

    def event(self, directory: Path, event: dict[str, Any]) -> None:
        if "line" in event:
            rundir.log(directory, event["line"])
        if "progress" in event:
            done, total = event["progress"]
            self.shares[directory] = done / total if total else 0.0
            self._move()

    def end(self, directory: Path, code: int) -> None:
        """`code`: the exit status, which the result says in words."""
        self.shares.pop(directory, None)
        result = self.manifest.ended(directory)
        self._move()
        if self.bar.shown:
            done, total = len(self.manifest.runs) - self.manifest.count("waiting"), len(self.manifest.runs)
            self.bar.line(f"[{done}/{total}] {directory.name}: {_outcome(result)}")
        if (directory / rundir.LOG).exists() and not (directory / rundir.LOG).stat().st_size:
            (directory / rundir.LOG).unlink()
        if result["status"] in rundir.FINISHED:
            self.tracker.log(directory)
        if result.get("reason") == rundir.DISK_FULL:  # the next would fail for the same
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))

    def _move(self) -> None:
        """The bar counts what is done now: what ended before took no time, and would make the rest look fast."""
        waiting, failed = self.manifest.count("waiting"), self.manifest.count("failed")
        ended = len(self.manifest.runs) - waiting
        self.bar.say(f"{ended - failed} done, {failed} failed, {len(self.shares)} running")
        self.bar.to(ended - self.before + sum(self.shares.values()), len(self.manifest.runs) - self.before)


def _outcome(result: dict[str, Any]) -> str:
    if result["status"] != "ok":
        return f"{result['status']}: {result.get('reason')}"
    speed = result.get("tokens_per_s")
    doubt = "" if result.get("timing_valid", True) else " (timing not to be used)"
    return "ok" if speed is None else f"ok, {speed:,.1f} tokens/s{doubt}"
