"""What a cache has been told of: whole prefixes, and the slots' values that lie at their ends."""

from __future__ import annotations

import random

from kvlab.testing.sequence import Sequence

Told = tuple[list[int], int]  # ids, space
Batch = tuple[Told, int, list[int]]  # a prefix, how much of it was told before, and the values of the rest
KEPT = 40  # of prefixes; beyond that each takes the place of any other


class Prefixes:
    """Those that the strategy may have published."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.prefixes: list[Told] = []
        self.batch: dict[int, Batch] = {}  # a token's value -> what it was told in, last

    def add(self, sequence: Sequence) -> None:
        """The cache hears now of all that is stored of it."""
        old, new = sequence.told, sequence.done
        if old == new:
            return
        told, values = (sequence.ids[:new], sequence.space), sequence.value[old:new].tolist()
        self.batch.update(dict.fromkeys(values, (told, old, values)))
        if len(self.prefixes) > KEPT:
            self.prefixes[self.rng.randrange(KEPT)] = self.prefixes.pop()
        self.prefixes.append(told)

    def ending_in(self, values: list[int], longest: int) -> list[Told]:
        """Those shorter than `longest` whose last token has one of the values."""
        found = []
        for value in values:
            if batch := self.batch.get(value):
                (ids, space), told, new = batch
                length = told + new.index(value) + 1
                if length < longest:
                    found.append((ids[:length], space))
        return found

    def copy(self) -> Prefixes:
        made = Prefixes(self.rng)
        made.prefixes, made.batch = list(self.prefixes), dict(self.batch)
        return made
