"""A process that carries out runs: one run and its end, or, kept warm, one after the other.

In a session of its own: Ctrl-C reaches the parent alone, which ends its children and knows what is finished.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvlab.harness import rundir

COMMAND = (sys.executable, "-P", "-X", "faulthandler", "-m", "kvlab.harness.job")
AHEAD = "--ahead"  # a word of that command: the run is named later
SECONDS_TO_STOP = 10


class Child:
    """`directory` is the run it is at; None: none."""

    def __init__(self, directory: Path | None, threads: int | None, warm: bool, to_log: bool) -> None:
        """warm: it stays for more runs. to_log: its errors go to the run's log, and not where ours go.

        directory: None: it is yet to be told, and imports meanwhile what a real run needs. Such a one is warm.
        """
        environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
        self.directory: Path | None = None
        self.warm, self.rest, self.over = warm, b"", ""
        log = None
        if to_log and directory:
            log = os.open(directory / rundir.LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        words = [AHEAD] if directory is None else [] if warm else [str(directory)]
        try:
            self.process = subprocess.Popen(
                [*COMMAND, *words],
                stdin=subprocess.PIPE if warm else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        finally:
            if log is not None:
                os.close(log)
        assert self.process.stdout
        self.output: int = self.process.stdout.fileno()
        if directory:
            self.take(directory)

    def take(self, directory: Path) -> None:
        """Carry out the run in `directory` next."""
        self.directory, self.began = directory, time.monotonic()
        if self.process.stdin:
            try:
                self.process.stdin.write(json.dumps(str(directory)).encode() + b"\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                pass  # it has died; the end of its output will say so

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether there is more to come, and the events that are there now."""
        chunk = os.read(self.output, 65536)
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        return bool(chunk), [_event(line) for line in lines]

    def end(self, why: str) -> None:
        """End it now; `why` is what the result says of its run, should it have left none."""
        self.over = why
        self.process.kill()

    def close(self) -> int:
        """The exit status of what has ended, negative for a signal. Leaves an error where its run left no result."""
        code = self.process.wait()
        self._close()
        if self.directory and rundir.read_result(self.directory) is None:
            rundir.fail(self.directory, self.over or _how_it_died(code))
        return code

    def dismiss(self) -> None:
        """It has nothing more to do."""
        self._close()
        self._wait()

    def leave(self) -> None:
        """End it now: whatever it has to do, nobody wants it any more. What has ended stays so."""
        self.process.kill()
        self._close()
        self.process.wait()

    def stop(self) -> None:
        """End it without a result."""
        self.process.terminate()
        self._close()
        self._wait()

    def _wait(self) -> None:
        try:
            self.process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with suppress(BrokenPipeError):  # it died before it was told; what it was told is still held here
                    stream.close()


def _event(line: bytes) -> dict[str, Any]:
    """What a library prints counts as a line of text."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"line": line.decode(errors="replace")}


def _how_it_died(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = ": out of memory?" if name == "SIGKILL" else ""
        return f"crash: the run's process was killed by {name}{hint}"
    return f"crash: the run's process ended with status {code} and left no result"
