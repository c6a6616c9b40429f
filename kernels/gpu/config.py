"""The shape of a kernel's programs; kernels/gpu/tuning.py knows which one to take."""

from __future__ import annotations

from typing import NamedTuple


class Config(NamedTuple):
    """The shape of one program of a kernel."""

    tile: int  # keys of a loop turn, a power of two from 16 on: tile / block_size blocks, or a part of one
    warps: int
    stages: int  # loop turns whose loads are under way at once
    queries: int = 16  # rows of queries, a power of two from 16 on; decode takes the query heads of a key/value head
