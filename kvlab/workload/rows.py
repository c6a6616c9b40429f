"""What every source of lengths hands on: one row per request, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from kvlab.workload.content import Content


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
    content: list[Content] | None = None  # what the prompts say; None: nothing in particular
    family: list[int] | None = None  # equal for requests that belong together: one conversation, one beginning
    turn: list[int] | None = None  # 0, 1, 2 ... within the family, where one waits for the other

    def __len__(self) -> int:
        return len(self.prompt)

    def pick(self, indices: list[int]) -> Rows:
        """These rows, in this order."""

        def some(part: list[Any] | None) -> Any:
            return None if part is None else [part[i] for i in indices]

        own = (self.time_s, self.content, self.family, self.turn)
        return Rows(some(self.prompt), some(self.output), self.origin, *map(some, own))

    def scaled(self, scale: float) -> Rows:
        """The same requests with lengths times `scale`, at least 1."""
        if scale == 1:
            return self
        prompt, output = ([max(1, round(length * scale)) for length in part] for part in (self.prompt, self.output))
        content = None if self.content is None else [each.scaled(scale) for each in self.content]
        return replace(self, prompt=prompt, output=output, content=content)

    def cut(self, max_tokens: int | None) -> Rows:
        """The same requests, none with more than `max_tokens` output tokens: a server stops there."""
        if max_tokens is None:
            return self
        return replace(self, output=[min(length, max_tokens) for length in self.output])

    def behind(self, system_prompt: int) -> Rows:
        """The same requests, each prompt longer by what all begin with."""
        return replace(self, prompt=[length + system_prompt for length in self.prompt]) if system_prompt else self
