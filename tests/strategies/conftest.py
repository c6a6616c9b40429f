"""A bench for short scenarios: token ids are written to slots with their whole prefix, and read back."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.strategy import Arrival, Copy, Grant, Memory, Strategy


class Bench:
    """One strategy, the sequences on it, and what each slot holds: the tokens up to and including its own."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.contents = strategy, {}
        self.ids: dict[int, list[int]] = {}
        self.space: dict[int, int] = {}
        self.stored: dict[int, int] = {}

    def arrival(self, seq: int, ids: list[int], space: int = 0, priority: int = 0) -> Arrival:
        array = np.array(ids, np.int32)
        array.flags.writeable = False
        return Arrival(seq, len(ids), len(ids), 64, 64, array, space, priority)

    def admit(self, seq: int, ids: list[int], space: int = 0, priority: int = 0, leave: int = 0) -> Grant | None:
        grant = self.strategy.admit(self.arrival(seq, ids, space, priority), len(ids), leave)
        if grant is not None:
            self.ids[seq], self.space[seq], self.stored[seq] = list(ids), space, grant.hit
        return grant

    def fork(self, parent: int, seq: int, length: int) -> Grant | None:
        grant = self.strategy.fork(parent, self.arrival(seq, self.ids[parent][:length], self.space[parent]))
        if grant is not None:
            self.ids[seq], self.space[seq], self.stored[seq] = self.ids[parent][:length], self.space[parent], length
        return grant

    def copies(self) -> list[Copy]:
        """Drain, and carry the copies out."""
        moves = self.strategy.drain()
        for move in moves:
            for i in range(move.tokens):
                self.contents[move.target + i] = self.contents.get(move.source + i)
        return moves

    def launch(self, *seqs: int, tell: bool = True) -> None:
        """Compute all known tokens of these sequences; the slots that they write belong to nobody else."""
        self.copies()
        for seq in seqs:
            written = self.slots(seq)[self.stored[seq] :]
            others = {slot for other in self.ids if other != seq for slot in self.slots(other)[: self.stored[other]]}
            assert not others & set(written), "writes what is shared"
            for slot, length in zip(written, range(self.stored[seq] + 1, len(self.ids[seq]) + 1), strict=True):
                self.contents[slot] = (self.space[seq], *self.ids[seq][:length])
            self.stored[seq] = len(self.ids[seq])
        for seq in seqs:
            if tell:
                self.tell(seq)

    def tell(self, seq: int) -> None:
        self.strategy.wrote(seq, self.stored[seq], np.array(self.ids[seq][: self.stored[seq]], np.int32))

    def start(self, seq: int, ids: list[int], **options: int) -> int:
        """Admit and compute; the hit."""
        grant = self.admit(seq, ids, **options)
        assert grant is not None
        self.launch(seq)
        return grant.hit

    def grow(self, seq: int, *ids: int) -> int | None:
        """Ask for room for more tokens; the room."""
        stored = self.stored[seq]
        room = self.strategy.extend(seq, stored, stored + len(ids))
        if room is not None:
            self.ids[seq] += ids
        return room

    def release(self, *seqs: int) -> None:
        for seq in seqs:
            self.strategy.release(seq)
            del self.ids[seq], self.space[seq], self.stored[seq]

    def slots(self, seq: int) -> list[int]:
        return self.strategy.slots(seq, 0, 0, len(self.ids[seq])).tolist()

    def check(self) -> None:
        """Every stored token is where its table says, and as many blocks are held as tables and copies need."""
        for seq, stored in self.stored.items():
            read = [self.contents.get(slot) for slot in self.slots(seq)[:stored]]
            assert read == [(self.space[seq], *self.ids[seq][: n + 1]) for n in range(stored)]
        usage, table = self.strategy.usage(), self.strategy.table
        live = {block for seq in self.ids for block in table[seq].tolist()}
        size = self.strategy.block_size * self.strategy.memory.token_bytes
        assert usage.held - usage.rounded == len(live) * size

    def blocks(self, name: str) -> int:
        """held, cached or free, in blocks."""
        return getattr(self.strategy.usage(), name) // (self.strategy.block_size * self.strategy.memory.token_bytes)


@pytest.fixture
def bench():
    """bench(Prefix, blocks, block_size, ...): a bench over a new strategy of so many blocks."""

    def make(kind: type[Strategy], blocks: int, block_size: int = 4, *arguments: object, **options: object) -> Bench:
        memory = Memory(bytes=blocks * block_size * 8, token_bytes=8, max_len=64, max_seqs=12, chunk=64)
        return Bench(kind(memory, block_size, *arguments, **options))

    return make
