"""Reads a trace file that the user names: CSV, plain or gzipped, its format recognised by its header.

The whole file is checked before a row of it is used: a run on half a trace would look like a run.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import NamedTuple

from kvlab.errors import UsageError
from kvlab.workload.knobs import Config, choice, optional_whole
from kvlab.workload.rows import Rows


def clock(text: str) -> float:
    """Seconds of a date and time; one without a zone is taken as UTC, so that no machine's zone matters."""
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def tokens(text: str) -> int:
    """A length of 1 to 9 digits, at least 1. int() alone would take '1_000', '-3' and '٣'."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text)):
        raise ValueError(text)
    return int(text)


class Format(NamedTuple):
    """Columns that a header must have; others are left alone."""

    prompt: str
    output: str
    time: str | None = None
    parse_time: Callable[[str], float] = seconds
    total: str | None = None  # checked where the file has it

    @property
    def needed(self) -> list[str]:
        return [self.time, self.prompt, self.output] if self.time else [self.prompt, self.output]

    @property
    def expected(self) -> str:
        time = f"{self.time} ({'date and time' if self.parse_time is clock else 'seconds'}), " if self.time else ""
        total = f", {self.total} their sum" if self.total else ""
        return f"{time}{self.prompt} and {self.output} as whole numbers, 1 or more{total}"


FORMATS = (
    Format("ContextTokens", "GeneratedTokens", "TIMESTAMP", clock),
    Format("num_prefill_tokens", "num_decode_tokens", total="num_total_tokens"),
    Format("prompt_len", "output_len", "arrival_s"),
    Format("prompt_len", "output_len"),
)


def read(path: Path) -> Rows:
    """All rows of a trace file, in order of arrival. UsageError names the file, and the line at fault."""
    data = read_bytes(path)
    lines = decode(path, data).split("\n")
    header = lines[0].rstrip("\r").split(",")
    form = recognise(path, header)
    rows = [parse(path, number, line, header, form) for number, line in enumerate(lines[1:], start=2)]
    if not rows:
        raise UsageError(f"{path}: has a header and no rows")
    if form.time:
        rows.sort(key=lambda row: row[0])
    origin = {"synthetic": False, "source": path.name, "source_sha256": hashlib.sha256(data).hexdigest()}
    times = [row[0] for row in rows] if form.time else None
    return Rows([row[1] for row in rows], [row[2] for row in rows], origin, times)


def read_bytes(path: Path) -> bytes:
    """The file's contents, unpacked if they are gzipped, whatever the name says."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"workload.path={path}: no such file") from None
    except OSError as error:
        raise UsageError(f"workload.path={path}: cannot be read ({error.strerror})") from None
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise UsageError(f"{path}: truncated or corrupt gzip file ({error})") from None


def decode(path: Path, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not text; a trace is CSV or JSON, plain or gzipped") from None
    if not text:
        raise UsageError(f"{path}: is empty; a trace is CSV with a header, or JSON, plain or gzipped")
    return text


def recognise(path: Path, header: list[str]) -> Format:
    for form in FORMATS:
        if set(form.needed) <= set(header):
            if twice := [name for name in form.needed if header.count(name) > 1]:
                raise UsageError(f"{path}, line 1: column {twice[0]} is there {header.count(twice[0])} times")
            return form
    allowed = " | ".join(",".join(form.needed) for form in FORMATS)
    json = "; JSON is for workload=mooncake, ragpulse or sharegpt_turns" if header[0].startswith(("{", "[")) else ""
    raise UsageError(f"{path}, line 1: unknown header {','.join(header)[:80]!r}; columns known: {allowed}{json}")


def parse(path: Path, number: int, line: str, header: list[str], form: Format) -> tuple[float, int, int]:
    """(time in seconds or 0, prompt, output) of one line."""
    try:
        cells = dict(zip(header, line.rstrip("\r").split(","), strict=True))
        prompt, output = tokens(cells[form.prompt]), tokens(cells[form.output])
        if form.total in cells and tokens(cells[form.total]) != prompt + output:
            raise ValueError(line)
        return form.parse_time(cells[form.time]) if form.time else 0.0, prompt, output
    except ValueError:
        raise UsageError(f"{path}, line {number}: {line[:80]!r}; expected {form.expected}") from None


def choose(rows: Rows, config: Config, seed: int) -> Rows:
    """The rows that run: the first ones, random ones without repeats, or random families; all if num_requests is null.

    Random rows of a trace whose prompts share hardly share any more: what belongs together is a family.
    """
    how = choice(config, "sample", ("head", "random", "families"), "head")
    n = optional_whole(config, "num_requests") or len(rows)
    if n > len(rows):
        raise UsageError(f"workload.num_requests={n}: {rows.origin['source']} has {len(rows):,} rows")
    if how == "head":
        return rows.pick(list(range(n)))
    rng = Random(f"{seed} sample")
    if how == "families":
        return rows.pick(sorted(_families(rows, rng)[:n]))
    order = sorted(range(len(rows)), key=lambda _: rng.random())[:n]
    # With times, the picked rows stay in order of arrival; without, a longer sample only adds to the end.
    return rows.pick(sorted(order) if rows.time_s else order)


def _families(rows: Rows, rng: Random) -> list[int]:
    """The rows, one family behind the other; of the last one that runs, the first rows may run alone."""
    if rows.family is None:
        raise UsageError(f"workload.sample=families: {rows.origin['source']} does not say what belongs together")
    place = {family: rng.random() for family in dict.fromkeys(rows.family)}
    return sorted(range(len(rows)), key=[place[family] for family in rows.family].__getitem__)
