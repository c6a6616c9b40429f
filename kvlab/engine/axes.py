"""The scheduling axes beside the strategy, each one small class that the configuration names."""

from __future__ import annotations

from typing import Protocol

from kvlab.request import Request
from kvlab.strategy import Arrival, Usage


class Forecast(Protocol):
    """How long a request will become, for strategies that reserve."""

    def expect(self, request: Request) -> int:
        """Tokens, prompt included, that the run expects it to hold."""
        ...


class Admission(Protocol):
    """When a waiting sequence may start."""

    def terms(self, arrival: Arrival, running: int, usage: Usage) -> tuple[int, int] | None:
        """(new, leave) to ask the strategy with, or None: not now. `running`: sequences on the device."""
        ...


class Victim(Protocol):
    """Who gives way when memory runs out."""

    def choose(self, running: list[int], asker: int) -> int:
        """One of `running` (sequences, oldest admission first); may be the asker itself."""
        ...


class Limit:
    """Expect what the client declared."""

    def expect(self, request: Request) -> int:
        return request.limit


class PromptPlusOne:
    """Start when all known tokens and one more fit; growth beyond that is not reserved."""

    def terms(self, arrival: Arrival, running: int, usage: Usage) -> tuple[int, int] | None:
        return (arrival.length, 0) if arrival.length < usage.largest else None


class Newest:
    """The last one admitted, so that the oldest always finish."""

    def choose(self, running: list[int], asker: int) -> int:
        return running[-1]
