"""Lines of a CSV file from columns of numbers: what stays the same from row to row is made text of once."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]


def lines(columns: list[Column | list[str] | str]) -> str:
    """As csv.writer writes rows: numbers as repr does, nothing for NaN. A text stands in every row as it is."""
    count = next(len(column) for column in columns if not isinstance(column, str))
    pieces: list[str | list[str]] = [""]  # of a row, in order, separators included
    for index, column in enumerate(columns):
        text = column if isinstance(column, str | list) else _texts(column)
        for piece in (",", text) if index else (text,):
            if isinstance(piece, str) and isinstance(pieces[-1], str):
                pieces[-1] += piece
            else:
                pieces.append(piece)
    pieces.append("\r\n")
    each = [repeat(piece, count) if isinstance(piece, str) else piece for piece in pieces]
    return "".join(chain.from_iterable(zip(*each, strict=True)))


def whole(column: Column) -> Column:
    """The same numbers as integers where all of them are."""
    integers = column.astype(np.int64)
    return integers if (integers == column).all() else column


def nanoseconds(second_N: Column) -> list[str]:
    """Seconds with nine digits behind the point: half the time of repr, and more than a clock knows."""
    return ("%.9f " * len(second_N) % tuple(second_N.tolist())).split()


def _texts(column: Column) -> str | list[str]:
    """One for all rows where they are equal."""
    first = np.flatnonzero(column[1:] != column[:-1]) + 1
    if not len(first) and len(column):
        return _each(column[:1])[0]
    if 2 * len(first) >= len(column):
        return _each(column)
    first = np.concatenate(([0], first))
    each: list[str] = np.repeat(np.array(_each(column[first]), object), np.diff(first, append=len(column))).tolist()
    return each


def _each(column: Column) -> list[str]:
    values = column.tolist()
    return (
        ["" if value != value else repr(value) for value in values] if np.isnan(column).any() else [*map(repr, values)]
    )
