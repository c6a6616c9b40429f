"""What one life is like, drawn once, so that rare combinations are common in some; and who comes in it."""

from __future__ import annotations

import random

from kvlab.testing.prefixes import Told
from kvlab.testing.sequence import Sequence


class Character:
    """Shares are those of the steps, launches or sequences that something happens in."""

    def __init__(self, rng: random.Random, longest: int) -> None:
        self.rng, self.longest = rng, longest
        self.count = 0  # sequences so far
        self.ahead = rng.random() < 0.5  # plans the next step while a launch is in flight
        self.lengths_only = rng.random() < 0.1
        self.vocabulary = rng.choice(((1,), (1, 1, 1, 2), (1, 2, 3), tuple(range(50))))
        self.spaces = rng.choice(((0,), (0, 0, 0, 7)))
        self.forks, self.drafts = rng.choice((0.0, 0.25, 0.25)), rng.choice((0.0, 0.4))
        self.swaps = rng.choice((0.0, 0.3, 0.9))  # of those who are preempted; now and then somebody goes of himself
        self.aborts, self.arrivals = rng.choice((0.0, 0.1)), rng.choice((1, 2, 4))
        self.forecasts = rng.choice((True, False, False))  # wrong ones

    def tokens(self, count: int) -> list[int]:
        return [self.rng.choice(self.vocabulary) for _ in range(count)]

    def newcomer(self, told: list[Told]) -> Sequence:
        """Few token ids, and often the beginning of one that was here before."""
        rng, prompt, final = self.rng, *self._lengths()
        ids, space = self.tokens(final), rng.choice(self.spaces)
        if told and not self.lengths_only and rng.random() < 0.4:
            old, space = rng.choice(told)
            keep = rng.choice((len(old), rng.randint(0, len(old))))
            ids[: min(keep, final)] = old[: min(keep, final)]
        limit = rng.randint(final, self.longest)
        self.count += 1
        return Sequence(
            seq=self.count,
            ids=ids,
            known=prompt,
            prompt=prompt,
            limit=limit,
            expected=rng.randint(1, limit) if self.forecasts else limit,
            space=space,
            origin=self.count if self.lengths_only else None,
        )

    def _lengths(self) -> tuple[int, int]:
        """Of a prompt, and of all that comes of it."""
        rng = self.rng
        prompt = rng.randint(1, self.longest - 1)
        if rng.random() < 0.6:
            prompt = min(prompt, rng.randint(1, 12))
        if rng.random() < 0.05:  # alone it fills the pool, or nearly
            prompt = self.longest - 1
        return prompt, min(self.longest, prompt + rng.randint(1, 14))

    def child(self, parent: Sequence, length: int) -> Sequence:
        """A fork with so many of its parent's tokens, and others after them."""
        self.count += 1
        end = self.rng.randint(length, min(self.longest, length + 10))
        ids = parent.ids[:length] + self.tokens(end - length)
        made = Sequence(self.count, ids, length, length, parent.limit, parent.expected, parent.space, parent.origin)
        made.limit = max(made.limit, end)
        return made
