"""The series of one run as files that pandas and a shell read: steps.csv, requests.csv, outputs.jsonl."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvlab.engine.sequence import Sequence
from kvlab.record.step import Step

REQUEST_COLUMNS = (
    "id", "arrival_s", "prompt_len", "output_len", "first_token_s", "finish_s", "preemptions", "outcome", "reason",
)  # fmt: skip


def write_steps(path: Path, rows: Iterable[tuple[float, ...]]) -> None:
    """A row a step: seconds, counts, bytes (kvlab.record.step.Step says which)."""
    _write_csv(path, ("step", *Step._fields), ((index, *row) for index, row in enumerate(rows)))


def write_requests(path: Path, sequences: list[Sequence]) -> None:
    """A row a request, in order of arrival; seconds from the start of the run."""
    _write_csv(path, REQUEST_COLUMNS, map(_request, sorted(sequences, key=lambda s: s.id)))


@contextmanager
def request_writer(path: Path) -> Iterator[Callable[[Sequence], None]]:
    """What writes a row of the same file as soon as a request has ended."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(REQUEST_COLUMNS)
        yield lambda sequence: writer.writerow(_request(sequence))


def _request(s: Sequence) -> tuple[object, ...]:
    return (
        s.id, s.request.arrival_s, s.request.prompt_len, s.known - s.request.prompt_len, s.first_token_s,
        s.finish_s, s.preemptions, s.outcome, s.reason,
    )  # fmt: skip


def write_outputs(path: Path, sequences: list[Sequence], ties: list[tuple[int, int]]) -> None:
    """A line a request: its output token ids, and the output indices at which the greedy choice was close."""
    close = defaultdict(list)
    for request, position in ties:
        close[request].append(position)
    with path.open("w") as file:
        for s in sorted(sequences, key=lambda s: s.id):
            near = sorted({position - s.request.prompt_len for position in close[s.id]})
            file.write(json.dumps({"id": s.id, "tokens": s.output.tolist(), "ties": near}) + "\n")


def _write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
