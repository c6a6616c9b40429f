"""Sequences in columns, for runs that know nothing of a request but its lengths: many come and go at a time.

A block is int64 [columns, N]. Times lie in it as the bits of their float64, so that all of a sequence moves at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.int64]

COLUMNS = (
    "id", "row", "stored", "known", "prompt", "room", "end", "final", "limit", "found", "reached", "preemptions",
    "arrival_s", "first_token_s", "last_token_s",
)  # fmt: skip
AT = {name: index for index, name in enumerate(COLUMNS)}
NEVER = -1.0  # a first token that has not come


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """N requests that have ended in the same way, in columns; times in seconds, NaN where there was none."""

    id: NDArray[np.int64]
    arrival_s: NDArray[np.float64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]  # tokens generated
    first_token_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    preemptions: NDArray[np.int64]
    outcome: str
    reason: str

    def __len__(self) -> int:
        return len(self.id)

    @property
    def numbers(self) -> tuple[NDArray[Any], ...]:
        return (
            self.id, self.arrival_s, self.prompt, self.output, self.first_token_s, self.finish_s, self.preemptions,
        )  # fmt: skip

    def rows(self, most: int) -> Iterator[tuple[object, ...]]:
        """Of the first so many, field after field, and the branch; None for NaN."""
        columns = [_listed(column[:most]) for column in self.numbers]
        return zip(*columns, repeat(self.outcome), repeat(self.reason), repeat(0), strict=False)


def _listed(column: NDArray[Any]) -> list[Any]:
    values: list[Any] = column.tolist()
    return [None if value != value else value for value in values] if column.dtype.kind == "f" else values


def of_requests(
    id_N: NDArray[np.int64],
    prompt_N: NDArray[np.int64],
    output_N: NDArray[np.int64],
    limit_N: NDArray[np.int64],
    arrival_s_N: NDArray[np.float64],
) -> Block:
    """Requests that have just come; lengths in tokens."""
    block = np.zeros((len(COLUMNS), len(id_N)), np.int64)
    block[AT["id"]], block[AT["prompt"]], block[AT["known"]], block[AT["limit"]] = id_N, prompt_N, prompt_N, limit_N
    block[AT["end"]] = prompt_N + output_N
    block[AT["final"]] = prompt_N + output_N - 1  # the last token is delivered but never stored
    seconds(block, "arrival_s")[:] = arrival_s_N
    seconds(block, "first_token_s")[:] = NEVER
    return block


def seconds(block: Block, name: str) -> NDArray[np.float64]:
    """A column of times; a view where the block is whole."""
    column: NDArray[np.float64] = block[AT[name]].view(np.float64)
    return column


def ended(block: Block, outcome: str, reason: str, finish_s: float = float("nan")) -> Ended:
    """What is recorded of these."""
    first_s = seconds(block, "first_token_s")
    return Ended(
        block[AT["id"]],
        seconds(block, "arrival_s"),
        block[AT["prompt"]],
        block[AT["known"]] - block[AT["prompt"]],
        np.where(first_s == NEVER, np.nan, first_s),
        np.full(block.shape[1], finish_s),
        block[AT["preemptions"]],
        outcome,
        reason,
    )


class Table:
    """The sequences on the device, oldest admission first: as Lanes, but without gaps: lanes are 0, 1, 2 ..."""

    def __init__(self, size: int) -> None:
        self.cells, self.count = np.zeros((len(COLUMNS), size), np.int64), 0
        # Views of the whole width; the first `count` are in use.
        self.id, self.row, self.stored, self.known, self.prompt, self.room, self.end, self.final = self.cells[:8]
        self.found, self.reached = self.cells[AT["found"]], self.cells[AT["reached"]]
        self.first_token_s = seconds(self.cells, "first_token_s")
        self.last_token_s = seconds(self.cells, "last_token_s")
        self.asks = np.zeros(size, np.bool_)  # nobody stands still here
        self._lanes = np.arange(size)

    def __len__(self) -> int:
        return self.count

    @property
    def spare(self) -> int:
        return len(self.asks) - self.count

    @property
    def order(self) -> NDArray[np.int64]:
        return self._lanes[: self.count]

    def add(self, block: Block) -> None:
        self.cells[:, self.count : self.count + block.shape[1]] = block
        self.count += block.shape[1]

    def take(self, out_B: NDArray[np.bool_]) -> Block:
        """Take these off [count]."""
        live = self.cells[:, : self.count]
        if np.count_nonzero(out_B) == self.count:
            self.count = 0
            return live.copy()
        gone, stay = live[:, out_B], live[:, ~out_B]
        self.count = stay.shape[1]
        self.cells[:, : self.count] = stay
        return gone
