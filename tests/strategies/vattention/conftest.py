"""A life of page groups under rows. No torch: a shadow stands in for memory."""

from __future__ import annotations

import copy
from math import gcd

import pytest

from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Arrival, Copy, Drop, Map, Memory, Unmap

TOKEN = 48  # bytes


def _memory(tokens, group_tokens, *, max_len=64, max_seqs=6):
    return Memory(tokens * TOKEN, TOKEN, max_len, max_seqs, max_len, page_group_bytes=int(group_tokens * TOKEN))


def _arrival(seq, length):
    return Arrival(seq, length, length, 64, 64)


class Shadow:
    """What each piece of each physical page group holds, and under which addresses it lies."""

    def __init__(self, strategy):
        self.strategy, self.memory = strategy, strategy.memory
        self.piece = gcd(TOKEN, self.memory.page_group_bytes)
        self.mapping, self.contents, self.committed = {}, {}, set()

    def places(self, slot):
        size = self.memory.page_group_bytes
        return [(self.mapping[at // size], at % size) for at in range(slot * TOKEN, (slot + 1) * TOKEN, self.piece)]

    def write(self, slot, value):
        for place in self.places(slot):
            assert self.strategy.owners.get(place[0], 1) == 1, "a page group of several owners is written"
            self.contents[place] = value

    def read(self, slot):
        (value,) = {self.contents.get(place) for place in self.places(slot)}
        return value

    def carry_out(self):
        for move in self.strategy.drain():
            match move:
                case Map(virtual, physical):
                    assert virtual not in self.mapping
                    assert 0 <= physical < self.strategy.groups_total
                    self.mapping[virtual] = physical
                    self.committed.add(physical)
                case Unmap(virtual):
                    del self.mapping[virtual]
                case Drop(physical):
                    assert physical not in self.mapping.values()
                    self.committed.remove(physical)
                case Copy(source, target, tokens):
                    for offset in range(tokens):
                        self.write(target + offset, self.read(source + offset))


class Life:
    """Sequences that write what they are told and must find it again; a token's value is its whole prefix's."""

    def __init__(self, strategy):
        self.strategy, self.shadow = strategy, Shadow(strategy)
        self.stored, self.tag, self.room, self.next = {}, {}, {}, 0

    def slots(self, seq):
        return self.strategy.slots(seq, 0, 0, len(self.stored[seq])).tolist()

    def call(self, method, *arguments):
        """A refusal must leave everything as it was."""
        before = _state(self.strategy)
        result = getattr(self.strategy, method)(*arguments)
        assert result is not None or _state(self.strategy) == before
        return result

    def admit(self, length, new=None):
        seq, self.next = self.next, self.next + 1
        grant = self.call("admit", _arrival(seq, length), new or length)
        if grant is not None:
            self.stored[seq], self.tag[seq], self.room[seq] = [], seq, grant.room
        return None if grant is None else seq

    def fork(self, parent, length=None):
        length = length or len(self.stored[parent])
        seq, self.next = self.next, self.next + 1
        grant = self.call("fork", parent, _arrival(seq, length))
        if grant is None:
            return None
        assert (grant.hit, grant.room >= length) == (length, True)
        self.stored[seq], self.tag[seq], self.room[seq] = self.stored[parent][:length], seq, length
        self.room[parent] = len(self.stored[parent])
        return seq

    def write(self, seq, upto):
        """Let it grow to `upto` tokens if there is room."""
        stored = self.stored[seq]
        if upto > self.room[seq]:
            room = self.call("extend", seq, len(stored), upto)
            if room is None:
                return False
            assert room >= upto
            self.room[seq] = room
        self.shadow.carry_out()
        first = len(stored)
        stored += [(stored[-1] if stored else None, self.tag[seq], i) for i in range(first, upto)]
        stored[first:] = [hash(value) for value in stored[first:]]
        for slot, value in zip(self.slots(seq)[first:], stored[first:], strict=True):
            self.shadow.write(slot, value)
        return True

    def truncate(self, seq, length):
        self.strategy.truncate(seq, length)
        del self.stored[seq][length:]
        self.tag[seq] = (self.tag[seq], length)  # what follows is another text
        self.room[seq] = length

    def release(self, seq):
        self.strategy.release(seq)
        del self.stored[seq], self.tag[seq], self.room[seq]

    def check(self):
        """Everybody finds their tokens, and the books say what is so."""
        self.shadow.carry_out()
        strategy, shadow, size = self.strategy, self.shadow, self.strategy.memory.page_group_bytes
        held, entries, rows = [], set(), {}
        for seq, stored in self.stored.items():
            assert [shadow.read(slot) for slot in self.slots(seq)] == stored
            row = strategy._row(seq)
            rows[row] = seq
            first = row * strategy.row_groups
            groups = [shadow.mapping[first + index] for index in range(strategy.held[row])]
            assert groups == strategy.mapped[row][: len(groups)]
            held += groups
            room = min(len(groups) * size // TOKEN, strategy.memory.max_len)
            entries |= {tuple(shadow.places(row * strategy.row_slots + i)) for i in range(room)}
        several = {physical: held.count(physical) for physical in held if held.count(physical) > 1}
        assert strategy.owners == several
        usage = strategy.usage()
        assert usage.held == len(set(held)) * size
        assert usage.held - usage.rounded == len(entries) * TOKEN
        assert usage.held + usage.free == strategy.groups_total * size
        assert usage.backed == len(set(shadow.mapping.values())) * size == len(shadow.committed) * size
        idle = [shadow.mapping[v] for v in shadow.mapping if v // strategy.row_groups not in rows]
        assert not set(idle) & set(held), "what is held lies under a row of nobody"
        assert len(idle) == len(set(idle))
        self.check_largest(usage.largest)

    def check_largest(self, largest):
        for length in (largest, largest + 1):
            if 0 < length <= self.strategy.longest:
                granted = copy.deepcopy(self.strategy).admit(_arrival(10**6, length), length)
                assert (granted is not None) == (length == largest)


def _state(strategy):
    """Every attribute in words, the order of lists and dicts included."""
    table = {**vars(strategy.table), "data": strategy.table.data.tolist()}
    return repr({**vars(strategy), "tables": None, "table": table})


@pytest.fixture
def life():
    def make(tokens, group_tokens, **options):
        return Life(VAttention(_memory(tokens, group_tokens, **options)))

    return make


@pytest.fixture(scope="session")
def memory():
    """memory(tokens, group_tokens, ...): with so many tokens to a page group, whole or not."""
    return _memory


@pytest.fixture(scope="session")
def arrival():
    return _arrival


@pytest.fixture(scope="session")
def state():
    return _state
