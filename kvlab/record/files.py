"""The series of one run as files that pandas and a shell read: steps.csv, requests.csv, outputs.jsonl."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from kvlab.engine.columns import Ended
from kvlab.engine.sequence import Sequence
from kvlab.record.lines import Nanoseconds, lines, whole
from kvlab.record.series import Block
from kvlab.record.step import Step

REQUEST_COLUMNS = (
    "id", "arrival_s", "prompt_len", "output_len", "first_token_s", "finish_s", "preemptions", "outcome", "reason",
    "branch",
)  # fmt: skip

FEW = 32
AT_ONCE = 512  # rows made text of together: more would take new memory from the system


def write_steps(path: Path, rows: Iterable[tuple[float, ...]]) -> None:
    """A row a step: seconds, counts, bytes (kvlab.record.step.Step says which)."""
    _write_csv(path, ("step", *Step._fields), ((index, *row) for index, row in enumerate(rows)))


def write_step_block(path: Path, rows: Block) -> None:
    """The same from rows in columns, of which some may be means of several steps; seconds to the nanosecond."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerow(("step", *Step._fields))
        counts = [*map(whole, rows[:, 2:].T)]
        for first in range(0, len(rows), AT_ONCE):
            few = slice(first, first + AT_ONCE)
            index, seconds = np.arange(len(rows))[few], rows[few, :2].T  # time_s and dt_s come first
            file.write(lines([index, *map(Nanoseconds, seconds), *(column[few] for column in counts)]))


def write_requests(path: Path, sequences: list[Sequence]) -> None:
    """A row a request, or a sequence of one that has several; in order of arrival, seconds from the run's start."""
    _write_csv(path, REQUEST_COLUMNS, map(_request, sorted(sequences, key=lambda s: (s.request.id, s.branch))))


class RequestWriter:
    """Writes rows of the same file as soon as requests have ended."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.writer = file, csv.writer(file)
        self.writer.writerow(REQUEST_COLUMNS)

    def one(self, sequence: Sequence) -> None:
        self.writer.writerow(_request(sequence))

    def many(self, ended: Ended, most: int) -> None:
        """The first so many of them."""
        if ended.reason or len(ended) < FEW:  # a text that may need quoting; or columns are not worth it
            self.writer.writerows(ended.rows(most))
        else:
            self.file.write(lines([*(part[:most] for part in ended.numbers), ended.outcome, "", "0"]))


@contextmanager
def request_writer(path: Path) -> Iterator[RequestWriter]:
    with path.open("w", newline="") as file:
        yield RequestWriter(file)


def _request(s: Sequence) -> tuple[object, ...]:
    return (
        s.request.id, s.request.arrival_s, s.request.prompt_len, s.known - s.request.prompt_len, s.first_token_s,
        s.finish_s, s.preemptions, s.outcome, s.reason, s.branch,
    )  # fmt: skip


def write_outputs(path: Path, sequences: list[Sequence], ties: list[tuple[int, int]]) -> None:
    """A line a sequence: its output token ids, and the output indices at which the greedy choice was close."""
    close = defaultdict(list)
    for sequence, position in ties:
        close[sequence].append(position)
    with path.open("w") as file:
        for s in sorted(sequences, key=lambda s: (s.request.id, s.branch)):
            near = sorted({position - s.request.prompt_len for position in close[s.id]})
            file.write(
                json.dumps({"id": s.request.id, "branch": s.branch, "tokens": s.output.tolist(), "ties": near}) + "\n"
            )


def _write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
