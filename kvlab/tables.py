"""The live tables of one layer group: where each sequence's slots are, as kernels read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray


class Counts(Mapping[int, int]):
    """Entries of each open sequence, by its row in `filled`."""

    def __init__(self, row: dict[int, int], filled: NDArray[np.int64]) -> None:
        self.row, self.filled = row, filled

    def __getitem__(self, seq: int) -> int:
        return self.filled.item(self.row[seq])

    def __iter__(self) -> Iterator[int]:
        return iter(self.row)

    def __len__(self) -> int:
        return len(self.row)

    def __repr__(self) -> str:
        return repr(dict(self))


class Tables:
    """int32 `data[rows, width]`, a row for each open sequence; kernels read it without a copy.

    With a block size an entry is a block; without one there is a single entry, the slot at which the
    sequence's row begins. An unknown sequence, or one that is open already, raises KeyError.
    A copy elsewhere sets `changed`: row -> the first entry that may differ from what was there before, appended
    ones apart, which are never looked at before they are appended.
    """

    def __init__(self, rows: int, width: int) -> None:
        self.data = np.zeros((rows, width), np.int32)
        self.row: dict[int, int] = {}  # sequence -> its row of data
        self.filled = np.zeros(rows, np.int64)  # entries of each row
        self.count = Counts(self.row, self.filled)  # sequence -> its entries
        self.start: dict[int, int] = {}  # sequence -> entries before it are dead (left behind by a window)
        self.spare = list(range(rows))[::-1]
        self.changed: dict[int, int] | None = None  # kept where somebody asked for it

    def open(self, seq: int, entries: Seq[int]) -> None:
        if seq in self.row:
            raise KeyError(f"sequence {seq} is open already")
        row = self.row[seq] = self.spare.pop()
        if len(entries):  # a cache opens most sequences without any
            self.data[row, : len(entries)] = entries
        self.filled[row], self.start[seq] = len(entries), 0
        self._note(row, 0)

    def open_each(self, seqs: list[int], count_N: NDArray[np.int64], entries: Seq[int]) -> None:
        """Open several, none of which is open: so many entries for each, one after another in `entries`."""
        rows = self.spare[: -len(seqs) - 1 : -1]
        del self.spare[len(self.spare) - len(seqs) :]
        self.data[_ranges(np.array(rows, np.int64), np.zeros_like(count_N), count_N)] = entries
        self.row.update(zip(seqs, rows, strict=True))
        self.filled[rows] = count_N
        self.start.update(dict.fromkeys(seqs, 0))
        for row in rows if self.changed is not None else ():
            self._note(row, 0)

    def append(self, seq: int, entries: Seq[int]) -> None:
        row = self.row[seq]
        count = self.filled.item(row)
        if len(entries) == 1:  # the decode step's case, four times as fast as a slice
            self.data[row, count] = entries[0]
        else:
            self.data[row, count : count + len(entries)] = entries
        self.filled[row] = count + len(entries)

    def rows(self, seqs: list[int]) -> NDArray[np.int64]:
        """Their rows [N]."""
        return np.fromiter(map(self.row.__getitem__, seqs), np.int64, len(seqs))

    def live(self, seqs: list[int]) -> NDArray[np.int32]:
        """The live entries of these, one sequence after another."""
        row_N = self.rows(seqs)
        start_N = np.fromiter(map(self.start.__getitem__, seqs), np.int64, len(seqs))
        return self.data[_ranges(row_N, start_N, self.filled[row_N])]

    def append_each(self, row_N: NDArray[np.int64], entries: Seq[int]) -> None:
        """One entry to each of these rows, no two of which are the same."""
        count_N = self.filled[row_N]
        self.data[row_N, count_N] = entries
        self.filled[row_N] = count_N + 1

    def put(self, seq: int, index: int, entry: int) -> None:
        self.data[self.row[seq], index] = entry
        self._note(self.row[seq], index)

    def cut(self, seq: int, count: int) -> list[int]:
        """Drop the entries from `count` on; return those that were live."""
        row, start = self.row[seq], self.start[seq]
        old = self.filled.item(row)
        self.filled[row] = min(count, old)
        self._note(row, count)
        gone: list[int] = self.data[row, max(count, start) : old].tolist()
        return gone

    def expire(self, seq: int, start: int) -> list[int]:
        """Mark the entries before `start` dead; return those that were live."""
        before, start = self.start[seq], min(start, self.count[seq])
        if start <= before:
            return []
        self.start[seq] = start
        gone: list[int] = self.data[self.row[seq], before:start].tolist()
        return gone

    def close(self, seq: int) -> list[int]:
        """Forget the sequence; return its live entries."""
        row = self.row.pop(seq)
        live: list[int] = self.data[row, self.start.pop(seq) : self.filled.item(row)].tolist()
        self.spare.append(row)
        return live

    def close_each(self, seqs: list[int]) -> list[int]:
        """Forget the sequences, none of which comes twice; return their live entries, each one's last entry first."""
        row_N = self.rows(seqs)
        stop_N, start_N = self.filled[row_N], np.array([*map(self.start.pop, seqs)], np.int64)
        self.spare += map(self.row.pop, seqs)
        live: list[int] = self.data[_ranges(row_N[::-1], start_N[::-1], stop_N[::-1])][::-1].tolist()
        return live

    def _note(self, row: int, index: int) -> None:
        if self.changed is not None:
            self.changed[row] = min(index, self.changed.get(row, index))

    def __getitem__(self, seq: int) -> NDArray[np.int32]:
        return self.data[self.row[seq], : self.count[seq]]

    def __len__(self) -> int:
        return len(self.row)


def _ranges(
    row_N: NDArray[np.int64], start_N: NDArray[np.int64], stop_N: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of each entry [start, stop) of each row, one row after another."""
    count_N = stop_N - start_N
    shift_N = start_N - np.cumsum(count_N) + count_N
    return np.repeat(row_N, count_N), np.arange(int(count_N.sum())) + np.repeat(shift_N, count_N)
