"""A bench for short scenarios: token ids are written to slots with their whole prefix, and read back.

And scenes: the same for every setting that is shipped, each step judged by the contract.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from kvlab.harness.check import maker
from kvlab.imports import class_at
from kvlab.strategies.paged import Paged
from kvlab.strategy import Arrival, Copy, Grant, Memory, Strategy
from kvlab.testing import checks
from kvlab.testing.memories import Setting
from kvlab.testing.sequence import Sequence
from kvlab.testing.trial import Trial


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


# --- every setting of conf/strategy, and some of theirs that have no file: for faults that may happen to any of them

CONF = Path(__file__).parents[2] / "conf" / "strategy"
ALIKE = ("vattention_sliced",)  # differs in what the store does alone
SETTINGS = {path.stem: [f"strategy={path.stem}"] for path in sorted(CONF.glob("*.yaml")) if path.stem not in ALIKE} | {
    "radix copy": ["strategy=radix", "strategy.partial=copy"],
    "radix block fifo": ["strategy=radix", "strategy.evict=block", "eviction=fifo"],
    "radix block lfu": ["strategy=radix", "strategy.evict=block", "strategy.partial=copy", "eviction=lfu"],
    "prefix fifo": ["strategy=prefix", "eviction=fifo"],
    "prefix priority": ["strategy=prefix_dedupe", "eviction=priority"],
}
KINDS = {
    name: class_at(yaml.safe_load((CONF / f"{words[0].removeprefix('strategy=')}.yaml").read_text())["_target_"])
    for name, words in SETTINGS.items()
}
SHARING = [name for name, kind in KINDS.items() if kind.fork is not Strategy.fork]
CACHING = [name for name, kind in KINDS.items() if kind.wrote is not Strategy.wrote]
VIRTUAL = [name for name, kind in KINDS.items() if kind.virtual]


class Scene:
    """The contract's trial of one strategy, told step by step: every call and every state is judged."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.trial, self.strangers = strategy, Trial(strategy, random.Random(0)), 0
        self.unit = strategy.block_size or (strategy.memory.align if strategy.virtual else 1)  # tokens shared at once
        self.grain = 1 if getattr(strategy, "copies_partial", False) else self.unit  # hits are multiples of it

    def admit(self, seq: int, ids: list[int], *, new: int | None = None, leave: int = 0, space: int = 0) -> bool:
        known, longest = len(ids), self.strategy.longest
        sequence = Sequence(seq, list(ids), known, known, longest, known, space)
        return self.trial.admit(sequence, new or known, leave)

    def compute(self, *seqs: int, upto: int | None = None, tell: bool = True) -> None:
        """One launch of all that is known of these, or of the tokens before `upto`."""
        self.trial.settle()
        sequences = [self.trial.running[seq] for seq in seqs]
        self.trial.issue([(sequence, upto or len(sequence.ids)) for sequence in sequences])
        self.trial.complete()
        for sequence in sequences if tell else ():
            self.trial.tell(sequence)
        checks.everything(self.trial)

    def start(self, seq: int, ids: list[int], **options: int) -> int:
        """Admit and compute; the hit."""
        assert self.admit(seq, ids, **options)
        hit = self.trial.running[seq].done
        self.compute(seq)
        return hit

    def grow(self, seq: int, *ids: int) -> bool:
        """Room for more tokens, asked for where it is needed."""
        sequence = self.trial.running[seq]
        old, length = len(sequence.ids), len(sequence.ids) + len(ids)
        if length > sequence.room and not self.trial.extend(sequence, length):
            return False
        sequence.ids, sequence.known = [*sequence.ids, *ids], length
        sequence.value = np.pad(sequence.value, (0, len(ids)))
        sequence.rechain(old)
        return True

    def fork(self, parent: int, child: int, length: int | None = None) -> bool:
        elder = self.trial.running[parent]
        ids = elder.ids[: length or elder.done]
        return self.trial.fork(
            elder, Sequence(child, ids, len(ids), len(ids), elder.limit, elder.expected, elder.space)
        )

    def cut(self, seq: int, length: int) -> None:
        """Its tokens from `length` on never were."""
        sequence = self.trial.running[seq]
        sequence.ids, sequence.value, sequence.known = sequence.ids[:length], sequence.value[:length], length
        self.trial.truncate(sequence, length)

    def release(self, *seqs: int) -> list[list[int]]:
        """What they had said."""
        gone = [self.trial.running[seq] for seq in seqs]
        for sequence in gone:
            self.trial.release(sequence, "released")
        return [sequence.ids[: sequence.known] for sequence in gone]

    def fill(self, first: int, spare: int = 0) -> list[int]:
        """Admit strangers until room for `spare` tokens is left, and compute them; their numbers, from `first` on."""
        came = []
        while (largest := self.strategy.usage().largest) > spare:
            self.strangers += 1
            assert self.admit(first + len(came), [1000 + self.strangers] * (largest - spare))
            came.append(first + len(came))
        self.compute(*came)
        return came

    def lookup(self, ids: list[int], space: int = 0) -> int:
        return self.trial.lookup(Sequence(10**6, list(ids), len(ids), len(ids), 0, 0, space).arrival())

    def tokens(self, name: str) -> float:
        """held, cached or free, in tokens' worth."""
        return getattr(self.strategy.usage(), name) / self.strategy.memory.token_bytes

    def check(self) -> None:
        """Nothing is lost, nothing is in two places, and owners are as many as entries."""
        self.trial.settle()
        strategy, table = self.strategy, self.strategy.table
        if strategy.virtual:
            entries = Counter(group for row, held in enumerate(strategy.held) for group in strategy.mapped[row][:held])
            assert strategy.owners == {group: count for group, count in entries.items() if count > 1}
            under = {group for row in strategy.mapped for group in row}
            assert sorted([*strategy.unmapped, *under]) == [*range(strategy.groups_total)]
        elif isinstance(strategy, Paged):
            entries = Counter(block for seq in table.row for block in table[seq].tolist())
            assert strategy.sharers == {block: count - 1 for block, count in entries.items() if count > 1}
            idle = getattr(strategy, "idle", None)
            waiting = [] if idle is None else filter(idle.__contains__, range(strategy.blocks + 1))
            everywhere = sorted([*strategy.free, *waiting, *entries])
            assert everywhere == [*range(strategy.pools[0].slots // strategy.block_size)][-strategy.blocks :]

    def end(self) -> None:
        """Everybody leaves, and all that there was at the start is there to be taken again."""
        self.check()
        self.release(*list(self.trial.running))
        self.check()
        self.strategy.clear()
        self.check()
        fresh = self.trial.capacity
        assert self.strategy.usage()[:3] == (0, 0, fresh)
        assert self.strategy.usage().largest >= self.strategy.longest


@cache
def making(name: str):
    return maker([*SETTINGS[name], "block_size=4"])


def scenes(name: str):
    """scene(tokens, ...): one setting over so many tokens, with blocks and page groups of four."""

    def make(tokens: int = 64, **options: int) -> Scene:
        options = {"max_len": 32, "max_seqs": 8, "chunk": 32, "page_group_bytes": 4 * 48, **options}
        spare = 4 * 48 if name.startswith("prefix_vllm") else 0  # a block that it never uses
        return Scene(making(name)(Setting(name, Memory(tokens * 48 + spare, 48, **options), 4)))

    make.name = name
    return make


@pytest.fixture(params=SETTINGS)
def anyone(request):
    return scenes(request.param)


@pytest.fixture(params=SHARING)
def sharing(request):
    """Those with a fork of their own."""
    return scenes(request.param)


@pytest.fixture(params=CACHING)
def caching(request):
    return scenes(request.param)


@pytest.fixture(params=VIRTUAL)
def virtual(request):
    return scenes(request.param)
