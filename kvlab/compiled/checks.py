"""What a compiled kernel must be like: everything that can be said about its speed without a GPU."""

from __future__ import annotations

import re

from kvlab.compiled.compile import Compiled

WIDEST = 16  # bytes that a thread loads or stores at once
# Keys and values are loaded into tiles, which are named b_ and their shape, or nothing, and stored from them.
TILES = re.compile(r"^b_\w+ = tl\.load\(|^tl\.store\(.*, b_\w+")
DOTS = ("_decode", "_prefill")
MOVES = (*DOTS, "_append", "_copy")


def faults(compiled: Compiled, spills: str = "") -> list[str]:
    """What is wrong with it, in words. spills: why it may spill; empty: it may not."""
    found = []
    if (compiled.spills or compiled.stack_bytes) and not spills:
        found.append(f"{compiled.spills} spills, {compiled.stack_bytes} bytes of stack a thread")
    if compiled.kernel in DOTS and compiled.variant.dtype != "float32" and not compiled.tensor:
        found.append("no tensor-core instruction")
    if compiled.kernel in MOVES and (width := narrowest(compiled)) != WIDEST:
        found.append(f"keys and values moved {width} bytes at once" if width else "no line moves keys or values")
    if compiled.kernel in MOVES and not compiled.wide:
        found.append(f"no instruction moves {WIDEST} bytes")
    name = f"{compiled.variant}: {compiled.kernel} on sm_{compiled.arch}"
    return [f"{name}: {fault}" for fault in found]


def narrowest(compiled: Compiled) -> int | None:
    """Bytes that keys and values are at least moved at once; None if nothing moves them."""
    widths = [width for text, widths in compiled.widths.items() if TILES.search(text) for width in widths]
    return min(widths, default=None)
