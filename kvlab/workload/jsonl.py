"""Traces that say which parts of prompts are equal: Mooncake's and RAGPulse's lines of JSON.

As with tables, the whole file is checked first, and one line at fault ends the run with its number.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kvlab.errors import UsageError
from kvlab.workload.content import NAMES, Segments
from kvlab.workload.rows import Rows
from kvlab.workload.trace import decode, read_bytes

BLOCK = 512  # tokens that one of Mooncake's hash ids stands for
MOST = 10**9  # tokens
PARTS = {  # of a RAGPulse prompt, in its order, and the file beside the trace that has their lengths
    "sys_prompt": "1_sys_prompt.jsonl",
    "passages_ids": "2_passages.jsonl",
    "history": "3_history.jsonl",
    "web_search": "5_web_search.jsonl",
    "user_input": "4_user_input.jsonl",
}
SEPARATORS = NAMES - 1  # name of the tokens between the parts, which RAGPulse only counts; here they come last
Line = dict[str, Any]
T = TypeVar("T")
Row = tuple[float, int, int, Segments, int]  # seconds, prompt, output, what it says, its family


def mooncake(path: Path) -> Rows:
    """Rows of {"timestamp": ms, "input_length", "output_length", "hash_ids": one per 512 tokens}; UsageError."""
    expected = (
        f"timestamp in milliseconds, input_length and output_length of 1 or more, hash_ids with a whole number below "
        f"2^63 for each {BLOCK} tokens of the input, the last for what is left"
    )
    return _read(path, _mooncake_row, expected)


def _mooncake_row(line: Line) -> Row:
    prompt, output, names = _tokens(line["input_length"]), _tokens(line["output_length"]), line["hash_ids"]
    if len(names) != -(-prompt // BLOCK):
        raise ValueError(f"{len(names)} hash_ids for {prompt} tokens, which are {-(-prompt // BLOCK)} blocks")
    ends = np.minimum(np.arange(1, len(names) + 1, dtype=np.int64) * BLOCK, prompt)
    # In the public traces every prompt begins with one and the same block: a family is known by its second.
    family = names[min(1, len(names) - 1)]
    return _seconds(line["timestamp"]) / 1000, prompt, output, Segments(_names(names), ends), _name(family)


def ragpulse(path: Path) -> Rows:
    """Rows of 0_trace.jsonl, with the lengths of their parts from the five files beside it; UsageError."""
    length = {name: tokens for file in PARTS.values() for name, tokens in _lengths(path.with_name(file))}
    sessions: dict[str, int] = {}

    def row(line: Line) -> Row:
        prompt, output = _tokens(line["input_length"]), _tokens(line["output_length"])
        names = [name for part in PARTS for name in line["hash_ids"][part]]
        if unknown := [name for name in names if name not in length]:
            raise ValueError(f"hash id {unknown[0]} has no length in the files beside it")
        ends = np.cumsum([length[name] for name in names], dtype=np.int64)
        if len(ends) and ends[-1] > prompt:
            raise ValueError(f"parts of {ends[-1]} tokens in an input of {prompt}")
        if not len(ends) or ends[-1] < prompt:
            names, ends = [*names, SEPARATORS], np.append(ends, np.int64(prompt))
        family = sessions.setdefault(str(line["session_id"]), len(sessions))
        return _seconds(line["timestamp"]), prompt, output, Segments(_names(names), ends), family

    parts = ", ".join(PARTS)
    expected = f"timestamp in seconds, input_length, output_length, session_id, and hash_ids with {parts}"
    return _read(path, row, expected)


def _lengths(path: Path) -> list[tuple[int, int]]:
    """(name, tokens) of {"..._id": name, "token_length": tokens} per line; the key of the name differs by file."""

    def entry(line: Line) -> tuple[int, int]:
        tokens = _tokens(line["token_length"])
        (name,) = (value for key, value in line.items() if key != "token_length")
        return _name(name), tokens

    return list(_parsed(path, decode(path, read_bytes(path)), entry, "an id and token_length, 1 or more"))


def _read(path: Path, row: Callable[[Line], Row], expected: str) -> Rows:
    data = read_bytes(path)
    rows = sorted(_parsed(path, decode(path, data), row, expected), key=lambda row: row[0])
    times, prompt, output, content, family = (list(part) for part in zip(*rows, strict=True))
    origin = {"synthetic": False, "source": path.name, "source_sha256": hashlib.sha256(data).hexdigest()}
    return Rows(prompt, output, origin, times, content, family)


def _parsed(path: Path, text: str, parse: Callable[[Line], T], expected: str) -> Iterator[T]:
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            yield parse(json.loads(line))
        except KeyError as error:
            raise UsageError(f"{path}, line {number}: lacks {error.args[0]}; expected {expected}") from None
        except (ValueError, TypeError) as error:
            why = str(error) if type(error) is ValueError else repr(line[:80])
            raise UsageError(f"{path}, line {number}: {why}; expected {expected}") from None


def _whole(value: object, low: int, high: int) -> int:
    """A whole number of JSON; also one in quotes, as some traces write them."""
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise ValueError(f"{value!r:.40} is no whole number from {low} to {high}")
    return number


def _tokens(value: object) -> int:
    return _whole(value, 1, MOST)


def _name(value: object) -> int:
    return _whole(value, 0, NAMES - 2)


def _names(values: list[object]) -> np.typing.NDArray[np.int64]:
    return np.array([value if value == SEPARATORS else _name(value) for value in values], np.int64)


def _seconds(value: object) -> float:
    time = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    if not math.isfinite(time):
        raise ValueError(f"timestamp {value!r:.40} is no number")
    return time
