"""The memories that a strategy is tried on: tiny pools, odd sizes, few sequences, some layers behind windows."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvlab.strategy import Memory


class Setting(NamedTuple):
    """A memory, and the block size for strategies that take one from outside."""

    name: str
    memory: Memory
    block_size: int


def _setting(
    name: str, tokens: int, block_size: int, host: int, *, spare_bytes: int = 0, token_bytes: int = 48, **rest: Any
) -> Setting:
    """`host`: tokens that lie there at most; spare_bytes are there too."""
    size, host_bytes = tokens * token_bytes + spare_bytes, host and host * token_bytes + spare_bytes
    return Setting(name, Memory(size, token_bytes, host_bytes=host_bytes, **rest), block_size)


SETTINGS = (
    _setting("small", 96, 4, 48, max_len=40, max_seqs=8, chunk=8, page_group_bytes=192, windows=(None, 6)),
    _setting("one sequence fits", 40, 4, 33, max_len=40, max_seqs=5, chunk=40, page_group_bytes=96),
    _setting("tokens straddle", 120, 3, 64, max_len=41, max_seqs=7, chunk=5, page_group_bytes=120, spare_bytes=20),
    _setting("roomy", 400, 16, 0, max_len=48, max_seqs=4, chunk=16, page_group_bytes=384),
    _setting("splinters", 100, 1, 50, max_len=33, max_seqs=6, chunk=9, page_group_bytes=32),
    _setting(
        "crowded", 160, 2, 100, max_len=24, max_seqs=16, chunk=24, page_group_bytes=48, windows=(None, 5, None, 5)
    ),
    _setting("odd", 101, 5, 20, max_len=37, max_seqs=6, chunk=7, page_group_bytes=21, spare_bytes=5, token_bytes=6),
    _setting(
        "less than one sequence", 30, 4, 70, max_len=40, max_seqs=4, chunk=6, page_group_bytes=144, windows=(9, None)
    ),
)

# For short histories: a few tokens fill them.
SHORT = (
    _setting("six blocks", 24, 4, 20, max_len=16, max_seqs=4, chunk=6, page_group_bytes=96),
    _setting("eight tokens", 8, 1, 16, max_len=8, max_seqs=3, chunk=8, page_group_bytes=32),
    SETTINGS[0],
)
