"""Lines of a CSV file from columns of numbers: one format for all, in which what stays the same is text already."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]
Stretches = tuple[Column, NDArray[np.int64]]  # a column, and the rows at which it changes


class Nanoseconds(NamedTuple):
    """Seconds, to be written with nine digits behind the point: half the time of repr, and more than a clock knows."""

    second_N: Column


def lines(columns: list[Column | Nanoseconds | str]) -> str:
    """As csv.writer writes rows: numbers as repr does, nothing for NaN. A text stands in every row as it is."""
    count = next(_len(column) for column in columns if not isinstance(column, str))
    line = ""
    values: list[list[Any]] = []
    steady: list[str | Stretches] = []  # since the last column that is not
    for index, column in enumerate(columns):
        steady.append("," if index else "")
        if isinstance(column, str):
            steady.append(column)
        elif not isinstance(column, Nanoseconds) and 2 * len(at := _changes(column)) < count:
            steady.append((column, at))
        else:
            for text, each in (_steady(steady, count), _numbers(column)):
                line += text
                values += each
            steady = []
    text, each = _steady([*steady, "\r\n"], count)
    return (line + text) * count % tuple(chain.from_iterable(zip(*values, *each, strict=True)))


def whole(column: Column) -> Column:
    """The same numbers as integers where all of them are."""
    integers = column.astype(np.int64)
    return integers if (integers == column).all() else column


def _len(column: Column | Nanoseconds) -> int:
    return len(column.second_N) if isinstance(column, Nanoseconds) else len(column)


def _changes(column: Column) -> NDArray[np.int64]:
    """Rows, but for the first, that are not as the one before."""
    changed: NDArray[np.int64] = (column[1:] != column[:-1]).nonzero()[0] + 1
    return changed


def _numbers(column: Column | Nanoseconds) -> tuple[str, list[list[Any]]]:
    """The format of a number, and the numbers."""
    if isinstance(column, Nanoseconds):
        return "%.9f", [column.second_N.tolist()]
    if column.dtype.kind == "f":
        return "%s", [_each(column)]
    return "%d", [column.tolist()]


def _steady(parts: list[str | Stretches], count: int) -> tuple[str, list[list[Any]]]:
    """The parts side by side in each row, as a format of one value or none: text made where one of them changes."""
    changes = [part[1] for part in parts if not isinstance(part, str)]
    if not any(map(len, changes)):
        texts = [part if isinstance(part, str) else _each(part[0][:1])[0] for part in parts if count]
        return "".join(texts).replace("%", "%%"), []
    at = np.unique(np.concatenate([[0], *changes]))
    each = [[part] * len(at) if isinstance(part, str) else _each(part[0][at]) for part in parts]
    texts = ["".join(row) for row in zip(*each, strict=True)]
    rows: list[str] = np.repeat(np.array(texts, object), np.diff(at, append=count)).tolist()
    return "%s", [rows]


def _each(column: Column) -> list[str]:
    values = column.tolist()
    if np.count_nonzero(column != column):  # NaN, which nothing equals
        return ["" if value != value else repr(value) for value in values]
    return [*map(repr, values)]
