"""The live tables of one layer group: where each sequence's slots are, as kernels read it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray


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
        self.count: dict[int, int] = {}  # sequence -> its entries
        self.start: dict[int, int] = {}  # sequence -> entries before it are dead (left behind by a window)
        self.spare = list(range(rows))[::-1]
        self.changed: dict[int, int] | None = None  # kept where somebody asked for it

    def open(self, seq: int, entries: Seq[int]) -> None:
        if seq in self.row:
            raise KeyError(f"sequence {seq} is open already")
        row = self.row[seq] = self.spare.pop()
        self.data[row, : len(entries)] = entries
        self.count[seq], self.start[seq] = len(entries), 0
        self._note(row, 0)

    def open_each(self, seqs: list[int], count_N: NDArray[np.int64], entries: Seq[int]) -> None:
        """Open several, none of which is open: so many entries for each, one after another in `entries`."""
        rows = self.spare[: -len(seqs) - 1 : -1]
        del self.spare[len(self.spare) - len(seqs) :]
        self.data[_ranges(rows, np.zeros_like(count_N), count_N)] = entries
        self.row.update(zip(seqs, rows, strict=True))
        self.count.update(zip(seqs, count_N.tolist(), strict=True))
        self.start.update(dict.fromkeys(seqs, 0))
        for row in rows if self.changed is not None else ():
            self._note(row, 0)

    def append(self, seq: int, entries: Seq[int]) -> None:
        count = self.count[seq]
        if len(entries) == 1:  # the decode step's case, four times as fast as a slice
            self.data[self.row[seq], count] = entries[0]
        else:
            self.data[self.row[seq], count : count + len(entries)] = entries
        self.count[seq] = count + len(entries)

    def append_each(self, seqs: Seq[int], entries: Seq[int]) -> None:
        """One entry to each of the sequences, no two of which are the same."""
        rows, counts = list(map(self.row.__getitem__, seqs)), list(map(self.count.__getitem__, seqs))
        self.data[rows, counts] = entries
        self.count.update(zip(seqs, [count + 1 for count in counts], strict=True))

    def put(self, seq: int, index: int, entry: int) -> None:
        self.data[self.row[seq], index] = entry
        self._note(self.row[seq], index)

    def cut(self, seq: int, count: int) -> list[int]:
        """Drop the entries from `count` on; return those that were live."""
        start, old = self.start[seq], self.count[seq]
        self.count[seq] = min(count, old)
        self._note(self.row[seq], count)
        gone: list[int] = self.data[self.row[seq], max(count, start) : old].tolist()
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
        live: list[int] = self.data[row, self.start.pop(seq) : self.count.pop(seq)].tolist()
        self.spare.append(row)
        return live

    def close_each(self, seqs: list[int]) -> list[int]:
        """Forget the sequences, none of which comes twice; return their live entries, each one's last entry first."""
        rows = [self.row[seq] for seq in seqs]
        stop_N, start_N = (np.array([part.pop(seq) for seq in seqs], np.int64) for part in (self.count, self.start))
        for seq in seqs:
            del self.row[seq]
        self.spare += rows
        live: list[int] = self.data[_ranges(rows[::-1], start_N[::-1], stop_N[::-1])][::-1].tolist()
        return live

    def _note(self, row: int, index: int) -> None:
        if self.changed is not None:
            self.changed[row] = min(index, self.changed.get(row, index))

    def __getitem__(self, seq: int) -> NDArray[np.int32]:
        return self.data[self.row[seq], : self.count[seq]]

    def __len__(self) -> int:
        return len(self.row)


def _ranges(
    row_N: Seq[int], start_N: NDArray[np.int64], stop_N: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of each entry [start, stop) of each row, one row after another."""
    count_N = stop_N - start_N
    shift_N = start_N - np.cumsum(count_N) + count_N
    return np.repeat(np.asarray(row_N, np.int64), count_N), np.arange(int(count_N.sum())) + np.repeat(shift_N, count_N)
