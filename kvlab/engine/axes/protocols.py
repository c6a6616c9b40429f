"""What a scheduling axis is asked. Each is an object of a small class that the configuration names.

Hooks that an object does not have are not called: `learn` of a forecast; `stepped`, `retracted` and `finished` of an
admission.
"""

from __future__ import annotations

from typing import Literal, Protocol

from kvlab.engine.axes.running import Running
from kvlab.request import Request
from kvlab.strategy import Arrival, Usage

How = Literal["recompute", "swap", "none"]


class Forecast(Protocol):
    """How long a request will become. It may have learn(request, output_len), called when one is done."""

    def expect(self, request: Request) -> int:
        """Tokens, prompt included, that the run expects it to hold."""
        ...


class Admission(Protocol):
    """When a waiting sequence may start.

    It may have stepped(), called once a step that decodes; retracted(), after a preemption; and
    finished(output_len, limit_len), when a request is done: tokens it generated and tokens it might have.
    """

    def terms(self, arrival: Arrival, running: Running, usage: Usage) -> tuple[int, int] | None:
        """(new, leave) to ask the strategy with, in tokens, or None: not now."""
        ...


class Victim(Protocol):
    """Who gives way when memory runs out."""

    def choose(self, running: Running, asker: int) -> int | None:
        """One of running.seq_B, maybe the asker itself. None: nobody gives way."""
        ...


class Preemption(Protocol):
    """What becomes of the tokens of a sequence that gives way."""

    def how(self, seq: int, length: int, hit: int) -> How:
        """`length` tokens are stored, of which a cache would give `hit` back. "none": nobody is preempted."""
        ...
