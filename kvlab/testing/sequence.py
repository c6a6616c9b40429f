"""A sequence as the contract knows it: token ids, and for each position a value that stands for the whole prefix."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Arrival

NEW = 10**6  # the first of ids that no life reaches


@dataclass(eq=False)
class Sequence:
    """`known` of its tokens are decided; the ids beyond are those that it will get."""

    seq: int
    ids: list[int]
    known: int
    prompt: int
    limit: int
    expected: int
    space: int = 0
    origin: int | None = None  # in lives of lengths only: the sequence that it descends from
    value: NDArray[np.int64] = field(init=False)
    done: int = 0  # stored by launches that are over
    issued: int = 0  # stored, or in a launch in flight
    told: int = 0  # what the strategy has heard through wrote since it was admitted
    room: int = 0  # tokens that it may hold before it must ask
    said: int | None = 0  # the room that the strategy said last; None: it may have changed since
    swapped: int = 0  # tokens of it that lie on the host while it waits
    doomed: bool = False  # to be released as soon as no launch touches it
    waiting: Arrival | None = None
    behind: tuple[list[int], int] | None = None  # ids and space of a longer parent, until its own first launch

    def __post_init__(self) -> None:
        self.value = np.zeros(len(self.ids), np.int64)
        self.rechain(0)

    @property
    def in_flight(self) -> bool:
        return self.issued > self.done

    def rechain(self, start: int) -> None:
        """Ids from `start` on are others now."""
        link = int(self.value[start - 1]) if start else hash((self.space, self.origin is None, self.origin or 0))
        links = [link := hash((link, token)) for token in self.ids[start:]]
        self.value[start : start + len(links)] = links

    def lengthen(self, tokens: list[int]) -> None:
        """It will get these tokens too."""
        old = len(self.ids)
        self.ids = [*self.ids, *tokens]
        self.value = np.resize(self.value, len(self.ids))
        self.rechain(old)

    def copy(self) -> Sequence:
        """The same, with a future of its own."""
        made = copy(self)
        made.ids, made.value, made.waiting = list(self.ids), self.value.copy(), None
        return made

    def arrival(self) -> Arrival:
        """One object for as long as it waits."""
        if self.waiting is None:
            length = self.swapped or self.known
            ids = None if self.origin is not None else read_only(self.ids[:length])
            prompt = min(self.prompt, length)
            self.waiting = Arrival(self.seq, length, prompt, self.limit, self.expected, ids, self.space)
        return self.waiting

    def started(self, hit: int, room: int) -> None:
        """It runs. A strategy that kept the arrival's ids, which it must not, finds them worthless."""
        if self.waiting is not None and self.waiting.ids is not None:
            self.waiting.ids.flags.writeable = True
            self.waiting.ids[:] = 1  # what many sequences begin with
        self.waiting = None
        self.done = self.issued = hit
        self.told = min(self.told, self.swapped)  # what was told before it went to the host is told
        self.swapped, self.room, self.said = 0, room, room

    def stopped(self, swapped: bool = False) -> None:
        """Preempted: it waits again, with all the tokens that it has got; those stored are lost, or on the host."""
        self.swapped = self.done if swapped else 0
        self.done = self.issued = self.room = 0


def read_only(ids: list[int]) -> NDArray[np.int32]:
    id_N = np.array(ids, np.int32)
    id_N.flags.writeable = False
    return id_N
