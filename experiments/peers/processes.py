"""A peer's process tree: it is asked in JSON lines, and stands still while others are measured."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from kvlab.errors import UsageError

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
HANGS_S = 1_800  # the slowest here loads, compiles and answers in a third of it
EVERY_S = 0.2  # between two looks at memory


class Process:
    """One peer, in a session of its own: that is how its children are known."""

    def __init__(self, name: str, command: list[str], settings: dict[str, Any], environ: dict[str, str], log: Path):
        self.name, self.log, self.begin = name, log, perf_counter()
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True, env=os.environ | environ,
            )  # fmt: skip
        try:
            self.facts = self.ask(settings)
        except BaseException:  # stopped while it loads, it would have nobody to end it
            self.close()
            raise

    def ask(self, message: Any) -> dict[str, Any]:
        """UsageError: it has ended, stands still, or says something that is no answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # what it ended with is said below
            print(json.dumps(message), file=self.process.stdin, flush=True)
        if not select.select([self.process.stdout], [], [], HANGS_S)[0]:
            raise UsageError(f"{self.name}: no answer in {HANGS_S:,} seconds; see {self.log}")
        line = self.process.stdout.readline()
        if not line:
            with suppress(subprocess.TimeoutExpired):  # it is about to end by itself, as a rule
                self.process.wait(timeout=5)
            self.close()
            last = (self.log.read_text().strip().splitlines() or [""])[-1]
            raise UsageError(f"{self.name}: ended with status {self.process.returncode} ({last}); see {self.log}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{self.name}: {line.strip()[:80]!r} is no answer; see {self.log}") from error
        return answer

    def since_start(self) -> float:
        """Seconds since the process was started."""
        return perf_counter() - self.begin

    def signal(self, number: int) -> None:
        for pid in self.tree():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def tree(self) -> list[int]:
        """Every process of its session."""
        return [pid for pid, stat in _stats() if int(stat[3]) == self.process.pid]

    def cpu_s(self) -> float:
        """Seconds of CPU that those alive have used, with the children that they have outlived."""
        used = [sum(map(int, stat[11:15])) for _, stat in _stats() if int(stat[3]) == self.process.pid]
        return sum(used) / TICKS

    def pss(self) -> int:
        """Bytes: shared ones in equal parts among those who share them."""
        return sum(map(_pss, self.tree()))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Lets it run, and stops it again."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.communicate()


class Peak:
    """The most bytes that a process tree takes while this is open. Looking costs time: never while a run is timed."""

    def __init__(self, process: Process) -> None:
        self.process, self.bytes, self.over = process, 0, threading.Event()

    def __enter__(self) -> Peak:
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def _look(self) -> None:
        while not self.over.wait(EVERY_S):
            self.bytes = max(self.bytes, self.process.pss())

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


class Others:
    """CPU time of everybody but a peer and this process, as a share of all there was since it was made."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.before = self._read()

    def share(self) -> float:
        total, busy, own = (after - before for after, before in zip(self._read(), self.before, strict=True))
        return max(0.0, busy - own) / total if total else 0.0

    def _read(self) -> tuple[float, float, float]:
        fields = [*map(int, (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9])]
        mine = os.times()
        idle = fields[3] + fields[4]
        return sum(fields) / TICKS, (sum(fields) - idle) / TICKS, self.process.cpu_s() + mine.user + mine.system


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Of every process, its number and the fields behind its name."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended


def _pss(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
