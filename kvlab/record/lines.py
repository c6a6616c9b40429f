"""Lines of a CSV file from columns of numbers: what stays the same from row to row is made text of once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]
Stretches = tuple[Column, NDArray[np.int64]]  # a column, and the rows at which it changes


def lines(columns: list[Column | list[str] | str]) -> str:
    """As csv.writer writes rows: numbers as repr does, nothing for NaN. A text stands in every row as it is."""
    count = next(len(column) for column in columns if not isinstance(column, str))
    pieces: list[Iterable[str]] = []
    steady: list[str | Stretches] = []  # since the last column that is not
    for index, column in enumerate(columns):
        steady.append("," if index else "")
        if isinstance(column, str):
            steady.append(column)
        elif not isinstance(column, list) and 2 * len(at := _changes(column)) < count:
            steady.append((column, at))
        else:
            pieces += [_steady(steady, count), column if isinstance(column, list) else _each(column)]
            steady = []
    pieces.append(_steady([*steady, "\r\n"], count))
    return "".join(chain.from_iterable(zip(*pieces, strict=True)))


def whole(column: Column) -> Column:
    """The same numbers as integers where all of them are."""
    integers = column.astype(np.int64)
    return integers if (integers == column).all() else column


def nanoseconds(second_N: Column) -> list[str]:
    """Seconds with nine digits behind the point: half the time of repr, and more than a clock knows."""
    return ("%.9f " * len(second_N) % tuple(second_N.tolist())).split()


def _changes(column: Column) -> NDArray[np.int64]:
    """Rows, but for the first, that are not as the one before."""
    changed: NDArray[np.int64] = (column[1:] != column[:-1]).nonzero()[0] + 1
    return changed


def _steady(parts: list[str | Stretches], count: int) -> Iterable[str]:
    """The parts side by side in each row: made text of where one of them changes, all as one."""
    changes = [part[1] for part in parts if not isinstance(part, str)]
    if not any(map(len, changes)):
        texts = [part if isinstance(part, str) else _each(part[0][:1])[0] for part in parts if count]
        return repeat("".join(texts), count)
    at = np.unique(np.concatenate([[0], *changes]))
    each = [repeat(part, len(at)) if isinstance(part, str) else _each(part[0][at]) for part in parts]
    texts = ["".join(row) for row in zip(*each, strict=True)]
    rows: list[str] = np.repeat(np.array(texts, object), np.diff(at, append=count)).tolist()
    return rows


def _each(column: Column) -> list[str]:
    values = column.tolist()
    if np.count_nonzero(column != column):  # NaN, which nothing equals
        return ["" if value != value else repr(value) for value in values]
    return [*map(repr, values)]
