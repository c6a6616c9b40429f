"""The scheduling axes beside the strategy, each one small class that the configuration names."""

from __future__ import annotations

from typing import Protocol

from kvlab.errors import UsageError
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


class Pow2:
    """Expect the prompt and the next power of two of the true output (Kwon et al., SOSP 2023, 6.1)."""

    def expect(self, request: Request) -> int:
        output = _true_output(request, "pow2")
        return min(request.prompt_len + (1 << max(0, output - 1).bit_length()), request.limit)


class Oracle:
    """Expect the true length, which only a trace knows."""

    def expect(self, request: Request) -> int:
        return request.prompt_len + _true_output(request, "oracle")


def _true_output(request: Request, forecast: str) -> int:
    if request.output_len is None:
        raise UsageError(
            f"forecast={forecast}: request {request.id} generates until end-of-text, so its output length is not "
            "known beforehand; allowed here is limit"
        )
    return request.output_len


class PromptPlusOne:
    """Start when all known tokens and one more fit; growth beyond that is not reserved."""

    def terms(self, arrival: Arrival, running: int, usage: Usage) -> tuple[int, int] | None:
        return (arrival.length, 0) if arrival.length < usage.largest else None


class Newest:
    """The last one admitted, so that the oldest always finish."""

    def choose(self, running: list[int], asker: int) -> int:
        return running[-1]
