"""Runs as processes of their own: started, listened to, and stopped together.

A fresh process for each run, so that no allocator state, thread pool or crash of one reaches the next. They
are in sessions of their own: Ctrl-C reaches the parent alone, which ends them and knows what is finished.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from kvlab.harness import rundir

COMMAND = (sys.executable, "-P", "-X", "faulthandler", "-m", "kvlab.harness.job")
SECONDS_TO_STOP = 10
Event = Callable[[Path, dict[str, Any]], None]
End = Callable[[Path, int], None]


class Job:
    """The process of one run."""

    def __init__(self, directory: Path, threads: int | None, errors: IO[bytes] | None) -> None:
        environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
        self.directory = directory
        self.rest = b""
        self.process = subprocess.Popen(
            [*COMMAND, str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdout
        self.output: int = self.process.stdout.fileno()

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether there is more to come, and the events that are there now."""
        chunk = os.read(self.output, 65536)
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        return bool(chunk), [_event(line) for line in lines]

    def wait(self) -> int:
        """The exit status, negative for a signal. Leaves an error if the process could not do it itself."""
        code = self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
        if rundir.read_result(self.directory) is None:
            rundir.fail(self.directory, _how_it_died(code))
        return code

    def stop(self) -> None:
        """End it without a result."""
        self.process.terminate()
        try:
            self.process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


def run_one(directory: Path, event: Event) -> int:
    """One run whose errors go where ours go; the exit status."""
    codes: list[int] = []
    run_all([directory], 1, event, lambda _, code: codes.append(code), to_log=False)
    return codes[0]


def run_all(directories: Iterable[Path], width: int, event: Event, end: End, to_log: bool = True) -> None:
    """Run what the directories say, at most `width` at a time. Stops them all on KeyboardInterrupt."""
    waiting, running = iter(directories), set[Job]()
    threads = 1 if width > 1 else None
    with selectors.DefaultSelector() as selector:
        try:
            while True:
                while len(running) < width and (directory := next(waiting, None)):
                    job = _start(directory, threads, to_log)
                    running.add(job)
                    selector.register(job.output, selectors.EVENT_READ, job)
                if not running:
                    return
                for key, _ in selector.select():
                    _listen(key.data, selector, running, event, end)
        except BaseException:
            for job in running:
                job.stop()
            raise


def _start(directory: Path, threads: int | None, to_log: bool) -> Job:
    if not to_log:
        return Job(directory, threads, None)
    with (directory / rundir.LOG).open("ab") as log:
        return Job(directory, threads, log)


def _listen(job: Job, selector: selectors.BaseSelector, running: set[Job], event: Event, end: End) -> None:
    more, events = job.read()
    for item in events:
        event(job.directory, item)
    if more:
        return
    selector.unregister(job.output)
    code = job.wait()
    running.remove(job)
    end(job.directory, code)


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
        return f"the run's process was killed by {name}{hint}"
    return f"the run's process ended with status {code} and left no result"
