"""What every source of lengths hands on: one row per request, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple


class Drawn(NamedTuple):
    """(prompt, output) lengths without end, and where they come from."""

    pairs: Iterator[tuple[int, int]]
    origin: dict[str, Any]

    def rows(self, n: int) -> Rows:
        """The first n."""
        pairs = list(islice(self.pairs, n))
        return Rows([prompt for prompt, _ in pairs], [output for _, output in pairs], self.origin)


@dataclass(frozen=True, slots=True)
class Rows:
    """Lengths in tokens, at least 1 each; times in seconds, or None where the source has none."""

    prompt: list[int]
    output: list[int]
    origin: dict[str, Any]  # goes into the result: `synthetic`, `source`, and what its licence asks for
    time_s: list[float] | None = None

    def __len__(self) -> int:
        return len(self.prompt)

    def pick(self, indices: list[int]) -> Rows:
        times = None if self.time_s is None else [self.time_s[i] for i in indices]
        prompt, output = [self.prompt[i] for i in indices], [self.output[i] for i in indices]
        return Rows(prompt, output, self.origin, times)

    def scaled(self, scale: float) -> Rows:
        """The same requests with lengths times `scale`, at least 1."""
        if scale == 1:
            return self
        prompt, output = ([max(1, round(length * scale)) for length in part] for part in (self.prompt, self.output))
        return replace(self, prompt=prompt, output=output)

    def cut(self, max_tokens: int | None) -> Rows:
        """The same requests, none with more than `max_tokens` output tokens: a server stops there."""
        if max_tokens is None:
            return self
        return replace(self, output=[min(length, max_tokens) for length in self.output])
