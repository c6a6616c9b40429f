"""A strategy that never returns is broken too."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from kvlab.testing.rule import RuleError

LIMIT_S = 2.0  # of this process' own computing, however busy the machine is
watching: list[bool] = []  # an entry for each watcher within which something runs


@contextmanager
def watched() -> Iterator[None]:
    """Raises RuleError in whatever still computes after LIMIT_S. In the main thread only, where signals arrive."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGVTALRM, bark)
    watching.append(True)
    rewind()
    try:
        yield
    finally:
        watching.pop()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def rewind() -> None:
    """The next step begins: its time runs anew, if anybody watches."""
    if watching:
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S, LIMIT_S)  # again, should a strategy swallow it


def bark(number: int, frame: object) -> NoReturn:
    raise RuleError("it returns", f"a step still computes after {LIMIT_S} s")
