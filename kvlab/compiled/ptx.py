"""How many bytes each source line of a kernel moves at once to and from global memory: read from its PTX.

In machine code a load that Triton writes as inline assembly may be said to be of a line further down, because the lines
of the assembly are counted as the source's. PTX says where the assembly begins.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_FILE = re.compile(r'\.file\s+(?P<index>\d+)\s+"(?P<path>[^"]+)"')
_PLACE = re.compile(r"\.loc\s+(?P<file>\d+)\s+(?P<line>\d+)")
_MOVE = re.compile(r"\b(ld|st)\.(?:\w+\.)*?global(?P<kind>[.\w:]*)")
_VECTOR = re.compile(r"\.v(\d+)\b")
_ELEMENT = re.compile(r"\.[bsuf](\d+)\b")
_ASYNC = re.compile(r"\bcp\.async\.c[ag]\.shared\.global\S*\s+\[.*?\],\s*\[.*?\],\s*(?P<bytes>0x[\da-f]+|\d+)")


def widths(ptx: str) -> dict[str, list[int]]:
    """By source line (its text): the bytes of its loads, stores, and copies to shared memory, each number once."""
    files = {found["index"]: found["path"] for found in _FILE.finditer(ptx)}
    found: dict[str, set[int]] = {}
    text, assembly = "", False
    for line in ptx.splitlines():
        if "inline asm" in line:
            assembly = "begin" in line
        elif (place := _PLACE.search(line)) and not assembly:
            text = _source(files[place["file"]])[int(place["line"]) - 1].strip()
        elif size := _bytes(line):
            found.setdefault(text, set()).add(size)
    return {text: sorted(sizes) for text, sizes in found.items()}


def _bytes(line: str) -> int | None:
    """That the instruction moves; None where it is another one."""
    if copied := _ASYNC.search(line):
        return int(copied["bytes"], 0)
    if not (move := _MOVE.search(line)):
        return None
    count, element = _VECTOR.search(move["kind"]), _ELEMENT.search(move["kind"])
    assert element, line
    return (int(count[1]) if count else 1) * int(element[1]) // 8


@cache
def _source(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
