"""The host's side of swapping: bounded room in blocks of slots, and who has what there.

Blocks are all alike, so nothing is ever too scattered to be used. A block may be several sequences': it is free
when the last one gives it back. Numbers are handed out as they are needed, so that a large tier costs no more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class HostTier:
    """`slots // block_size` blocks; a slot has room for a token's keys and values in every layer."""

    def __init__(self, slots: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = slots // block_size
        self.used = 0  # blocks from here on were never taken
        self.given: list[int] = []  # free ones among those that were
        self.users: dict[int, int] = {}  # block -> the swapped sequences that have it
        self.kept: dict[int, list[list[int]]] = {}  # swapped sequence -> its blocks, for each group of layers

    def __eq__(self, other: object) -> bool:
        """A refusal leaves it as it was."""
        return isinstance(other, HostTier) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"HostTier({vars(self)})"

    @property
    def free(self) -> int:
        return self.blocks - len(self.users)

    def take(self, count: int) -> list[int]:
        """Blocks, of those that are free; whoever asks has looked whether there are so many."""
        again = self.given[: -count - 1 : -1]
        del self.given[len(self.given) - len(again) :]
        first, self.used = self.used, self.used + count - len(again)
        taken = [*again, *range(first, self.used)]
        self.users.update(dict.fromkeys(taken, 1))
        return taken

    def share(self, block: int) -> None:
        """One sequence more has it."""
        self.users[block] += 1

    def give(self, seq: int) -> list[int]:
        """A sequence is swapped no longer; the blocks that nobody has now. KeyError: it was not."""
        gone = []
        for block in [block for blocks in self.kept.pop(seq) for block in blocks]:
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                gone.append(block)
        self.given += reversed(gone)
        return gone

    def slots(self, blocks: list[int]) -> NDArray[np.int64]:
        """The slots of these blocks, one block after the other."""
        first_N = np.array(blocks, np.int64) * self.block_size
        slot_NK: NDArray[np.int64] = first_N[:, None] + np.arange(self.block_size)
        return slot_NK.ravel()
