"""When a waiting sequence may start, by rules that look at no history.

Beside others it may have to leave memory to them. Who is alone takes what he asks for: Strategy.longest has promised
that his limit fits, so nobody waits for room that will never be left.
"""

from __future__ import annotations

from kvlab.engine.axes.running import Running, capacity
from kvlab.strategy import Arrival, Usage


class PromptPlusOne:
    """Start when all known tokens and one more fit; growth beyond that is not reserved."""

    def terms(self, arrival: Arrival, running: Running, usage: Usage) -> tuple[int, int] | None:
        return (arrival.length, 0) if arrival.length < usage.largest else None


class FirstChunk:
    """Start when what the first launch computes fits: the rest of the prompt finds room later, or does not."""

    def __init__(self, chunk: int | None = None, token_budget: int | None = None) -> None:
        self.first = min((size for size in (chunk, token_budget) if size is not None), default=None)

    def terms(self, arrival: Arrival, running: Running, usage: Usage) -> tuple[int, int] | None:
        return self._new(arrival), 0

    def _new(self, arrival: Arrival) -> int:
        return arrival.length if self.first is None else min(self.first, arrival.length)


class FullPrompt(FirstChunk):
    """Take what the first launch computes, when the rest of this prompt and of those under way would fit too."""

    def terms(self, arrival: Arrival, running: Running, usage: Usage) -> tuple[int, int] | None:
        new = self._new(arrival)
        if not len(running):
            return new, 0
        rest = running.growth(running.known_B) + running.rest(new, arrival.length)
        return new, running.tokens(rest)


class Watermark:
    """Start when the known tokens fit and a share of the memory stays for those that run to grow into."""

    def __init__(self, share: float = 0.01) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share={share}: allowed is 0 up to, but not, 1")
        self.share = share

    def terms(self, arrival: Arrival, running: Running, usage: Usage) -> tuple[int, int] | None:
        if not len(running):
            return arrival.length, 0
        return arrival.length, running.tokens(int(self.share * (capacity(usage) // running.unit_bytes)))


class ReserveMaxTokens:
    """Start when all that run, and this one, could grow to their limits: then nobody is ever preempted."""

    def terms(self, arrival: Arrival, running: Running, usage: Usage) -> tuple[int, int] | None:
        if not len(running):
            return arrival.length, 0
        rest = running.growth(running.limit_B) + running.rest(arrival.length, arrival.limit)
        return arrival.length, running.tokens(rest)
