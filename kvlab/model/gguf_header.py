"""The head of a GGUF file: its metadata, and where its tensors lie. No tensor is read.

Parsed here because gguf's reader makes numpy views of each of a tokenizer's 98,000 strings (2 s at every start) and
follows damaged lengths past the end of the file; every length here is checked against what is left.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from kvlab.errors import UsageError

SCALARS = {
    0: "u1",
    1: "i1",
    2: "u2",
    3: "i2",
    4: "u4",
    5: "i4",
    6: "f4",
    7: "?",
    10: "u8",
    11: "i8",
    12: "f8",
}
STRING, ARRAY = 8, 9
LENGTH = struct.Struct("<Q")


class Texts(Sequence[str]):
    """Strings that are decoded when the first of them is looked at: most runs need no tokenizer.

    UnicodeDecodeError, then: damaged.
    """

    def __init__(self, stored: bytes, count: int) -> None:
        """stored: each behind its length, which was checked."""
        self._stored, self._count = stored, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._texts[index]

    @cached_property
    def _texts(self) -> list[str]:
        stored, at, texts = self._stored, 0, []
        for _ in range(self._count):
            first = at + LENGTH.size
            at = first + LENGTH.unpack_from(stored, at)[0]
            texts.append(stored[first:at].decode())
        return texts


class TensorInfo(NamedTuple):
    """Where a tensor lies."""

    size: tuple[int, ...]  # rows first
    type: int  # ggml's number of the quantisation
    start: int  # bytes from the start of the file


class Header(NamedTuple):
    """What a GGUF file says of itself."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(path: Path) -> Header:
    """UsageError: the file is missing, not a GGUF file, truncated or damaged."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, struct.error) as error:
        raise UsageError(f"{path}: not a whole GGUF file ({error})") from error


class _Cursor:
    """Reads little-endian values one after the other; ValueError at the end of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ValueError(f"it ends at byte {len(self.data):,}, in the middle of its head")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str) -> int:
        value: int = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]
        return value

    def string(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(self.number("I"), self.number("Q"))
        return self.array(kind, 1)[0]

    def texts(self, count: int) -> Texts:
        """Steps from length to length; one past the end of the file is no length."""
        data, at, first, end = self.data, self.at, self.at, len(self.data)
        for _ in range(count):
            if at > end - LENGTH.size:
                break
            at += LENGTH.size + LENGTH.unpack_from(data, at)[0]
        else:
            return Texts(self.take(at - first), count)
        raise ValueError(f"it ends at byte {end:,}, in the middle of its head")

    def array(self, kind: int, count: int) -> Sequence[Any]:
        if kind == STRING:
            return self.texts(count)
        if kind not in SCALARS:
            raise ValueError(f"unknown type {kind} of a value")
        dtype = np.dtype("<" + SCALARS[kind])
        values: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return values


def _parse(cursor: _Cursor) -> Header:
    if (magic := cursor.take(4)) != b"GGUF":
        raise ValueError(f"it starts with {magic!r}, not with b'GGUF'")
    if (version := cursor.number("I")) not in (2, 3):
        raise ValueError(f"version {version}; allowed is 2 or 3")
    num_tensors, num_values = cursor.number("Q"), cursor.number("Q")
    metadata = {}
    for _ in range(num_values):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.number("I"))
    infos = {}
    for _ in range(num_tensors):
        name, dims = cursor.string(), cursor.number("I")
        size = tuple(cursor.array(10, dims))[::-1]
        infos[name] = TensorInfo(size, cursor.number("I"), cursor.number("Q"))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment={alignment}")
    base = -(-cursor.at // alignment) * alignment
    return Header(metadata, {name: info._replace(start=base + info.start) for name, info in infos.items()})
