"""A pool of single token slots behind a table: paging with blocks of one, so no slot is ever wasted.

LightLLM's token attention (its memory manager is a stack of slots), SGLang with page size 1. The price is that every
token asks, and a table entry for each. Taking a whole step's slots at once makes the asking bearable.
"""

from __future__ import annotations

from kvlab.strategies.paged import Paged
from kvlab.strategy import Memory


class TokenPool(Paged):
    """Blocks of one slot; a decode step's growth in one go."""

    def __init__(self, memory: Memory, block_size: int = 1) -> None:
        if block_size != 1:
            raise ValueError(f"block_size={block_size}: allowed is 1 (paged takes others)")
        super().__init__(memory, block_size)

    def extend_all(self, seqs: list[int], lengths: list[int], uptos: list[int]) -> list[int]:
        count, row = self.table.count, self.table.row
        counts = [count[seq] for seq in seqs]
        one_more = [held + 1 for held in counts]
        if one_more != uptos or len(seqs) > len(self.free) or max(uptos, default=0) > self.memory.max_len:
            return super().extend_all(seqs, lengths, uptos)
        self.table.data[[row[seq] for seq in seqs], counts] = self.free[: -len(seqs) - 1 : -1]
        del self.free[len(self.free) - len(seqs) :]
        count.update(zip(seqs, one_more, strict=True))
        return one_more
