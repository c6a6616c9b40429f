"""How far work has come: a bar with the time left on a terminal, plain lines elsewhere. Goes to standard error."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """`with Bar("runs") as bar`: bar.to(done, total), bar.say(words), bar.line(text)."""

    def __init__(self, what: str, total: int | None = None) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.shown = console.is_terminal
        self.progress = Progress(*columns, console=console, disable=not self.shown, refresh_per_second=2)
        self.task = self.progress.add_task(what, total=total)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def to(self, done: float, total: int) -> None:
        self.progress.update(self.task, completed=done, total=total)

    def say(self, words: str) -> None:
        """What stands before the bar."""
        self.progress.update(self.task, description=words)

    def line(self, text: str) -> None:
        """A line of text above the bar."""
        if self.shown:
            self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)
