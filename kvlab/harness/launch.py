"""Runs in processes of their own: started, listened to, held to their limits, and stopped together.

A run whose time or memory counts gets a fresh process, so that no allocator state, thread pool or crash of one reaches
the next. Simulated runs, which count on a clock of their own, follow each other in warm ones.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvlab.harness.child import Child
from kvlab.harness.limits import Limits

Event = Callable[[Path, dict[str, Any]], None]
End = Callable[[Path, int], None]


# Who chooses one of these may well want no real run.
MAYBE_SIMULATED = ("executor", "preset", "experiment", "hydra/launcher")


@contextmanager
def begun(overrides: Sequence[str]) -> Iterator[Child | None]:
    """A process for `run_one` that imports what a real run needs while its configuration is put together.

    None: by the overrides it may be no real one. It ends with the block, whatever it has been told by then.
    """
    if any(word.lstrip("+~").partition("=")[0] in MAYBE_SIMULATED for word in overrides):
        yield None
        return
    child = Child(None, None, warm=True, to_log=False)
    try:
        yield child
    finally:
        child.leave()


def run_one(directory: Path, event: Event, child: Child | None = None) -> int:
    """One run whose errors go where ours go; the exit status. child: the one that carries it out; None: a new one."""
    codes: list[int] = []
    run_all([directory], 1, event, lambda _, code: codes.append(code), to_log=False, waiting=child)
    return codes[0]


def run_all(
    directories: Iterable[Path],
    width: int,
    event: Event,
    end: End,
    limits: Limits | None = None,
    warm: bool = False,
    to_log: bool = True,
    waiting: Child | None = None,
) -> None:
    """Run what the directories say, at most `width` at a time. Stops them all on KeyboardInterrupt.

    `event` hears what runs say, `end` the exit status of each. warm: processes go on to the next run. waiting: one
    that takes the first.
    """
    crew = Crew(width, event, end, limits or Limits(), warm, to_log)
    if waiting:
        crew.add(waiting)
    with crew.selector:
        try:
            crew.work(iter(directories))
        except BaseException:
            for child in crew.children:
                child.stop()
            raise
        for child in crew.children:
            child.dismiss()


class Crew:
    """The processes that carry out runs at the same time."""

    def __init__(self, width: int, event: Event, end: End, limits: Limits, warm: bool, to_log: bool) -> None:
        self.width, self.event, self.ended, self.limits = width, event, end, limits
        self.warm, self.to_log, self.threads = warm, to_log, 1 if width > 1 else None
        self.children: set[Child] = set()
        self.selector = selectors.DefaultSelector()

    def work(self, waiting: Iterator[Path]) -> None:
        while True:
            while len(self._busy()) < self.width and (directory := next(waiting, None)):
                self._give(directory)
            if not self._busy():
                return
            for key, _ in self.selector.select(self.limits.period):
                self._listen(key.data)
            self._look()

    def _busy(self) -> list[Child]:
        return [child for child in self.children if child.directory]

    def _give(self, directory: Path) -> None:
        """To a child that waits, else to a new one."""
        for child in self.children:
            if child.directory is None:
                return child.take(directory)
        self.add(Child(directory, self.threads, self.warm, self.to_log))
        return None

    def add(self, child: Child) -> None:
        self.children.add(child)
        self.selector.register(child.output, selectors.EVENT_READ, child)

    def _listen(self, child: Child) -> None:
        more, events = child.read()
        for event in events:
            if "end" in event and child.warm:
                self._end(child, event["end"])
            elif child.directory:
                self.event(child.directory, event)
        if not more:
            self._leave(child)
            self._end(child, child.close())
        elif child.directory is None and self.limits.crowded(child.process.pid):
            self._leave(child)
            child.dismiss()

    def _end(self, child: Child, code: int) -> None:
        if directory := child.directory:
            child.directory = None
            self.ended(directory, code)

    def _leave(self, child: Child) -> None:
        self.selector.unregister(child.output)
        self.children.remove(child)

    def _look(self) -> None:
        for child in self._busy() if self.limits.period else []:
            if not child.over and (why := self.limits.broken(child.process.pid, time.monotonic() - child.began)):
                child.end(why)
