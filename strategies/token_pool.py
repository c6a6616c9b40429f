"""A pool of single token slots behind a table: paging with blocks of one, so no slot is ever wasted.

LightLLM's token attention (its memory manager is a stack of slots), SGLang with page size 1. The price is that every
token asks, and a table entry for each. Taking a whole step's slots at once makes the asking bearable.
"""

from __future__ import annotations

from kvlab.strategies.paged import Paged
from kvlab.strategy import Counts, Memory


class TokenPool(Paged):
    """Blocks of one slot; a decode step's growth in one go."""

    def __init__(self, memory: Memory, block_size: int = 1) -> None:
        if block_size != 1:
            raise ValueError(f"block_size={block_size}: allowed is 1 (paged takes others)")
        super().__init__(memory, block_size)

    def extend_all(self, seqs: list[int], length_N: Counts, upto_N: Counts) -> list[int]:
        row_N, count = self.table.rows(seqs), len(seqs)
        one_more = bool((self.table.filled[row_N] + 1 == upto_N).all())
        if not one_more or not 0 < count <= len(self.free) or upto_N.max() > self.memory.max_len:
            return super().extend_all(seqs, length_N, upto_N)
        self.table.append_each(row_N, self.free[: -count - 1 : -1])
        del self.free[-count:]
        rooms: list[int] = upto_N.tolist()
        return rooms
