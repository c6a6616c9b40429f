"""Virtual memory: page groups under rows, taken, shared and given back. No torch: a shadow stands in for memory."""

from __future__ import annotations

import copy
import random
import sys
from math import gcd

import pytest

from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Arrival, Copy, Drop, Map, Memory, Unmap

TOKEN = 48  # bytes


def memory(tokens, group_tokens, *, max_len=64, max_seqs=6):
    return Memory(tokens * TOKEN, TOKEN, max_len, max_seqs, max_len, page_group_bytes=int(group_tokens * TOKEN))


def arrival(seq, length):
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
        before = state(self.strategy)
        result = getattr(self.strategy, method)(*arguments)
        assert result is not None or state(self.strategy) == before
        return result

    def admit(self, length, new=None):
        seq, self.next = self.next, self.next + 1
        grant = self.call("admit", arrival(seq, length), new or length)
        if grant is not None:
            self.stored[seq], self.tag[seq], self.room[seq] = [], seq, grant.room
        return None if grant is None else seq

    def fork(self, parent, length=None):
        length = length or len(self.stored[parent])
        seq, self.next = self.next, self.next + 1
        grant = self.call("fork", parent, arrival(seq, length))
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
                granted = copy.deepcopy(self.strategy).admit(arrival(10**6, length), length)
                assert (granted is not None) == (length == largest)


def state(strategy):
    """Every attribute in words, the order of lists and dicts included."""
    table = {**vars(strategy.table), "data": strategy.table.data.tolist()}
    return repr({**vars(strategy), "tables": None, "table": table})


@pytest.fixture
def life():
    def make(tokens, group_tokens, **options):
        return Life(VAttention(memory(tokens, group_tokens, **options)))

    return make


# --- rows and deferred reclamation


@pytest.mark.parametrize(("group_tokens", "align", "slots"), [(8, 8, 24), (2.5, 5, 20), (1 / 3, 1, 20), (20, 20, 20)])
def test_rows_start_where_a_page_group_starts(group_tokens, align, slots):
    """So neighbours never lie on one page group, whatever their lengths."""
    strategy = VAttention(memory(400, group_tokens, max_len=20))
    assert (strategy.memory.align, strategy.row_slots) == (align, slots)
    for seq in range(6):
        strategy.admit(arrival(seq, 20), 20)
        assert int(strategy.table[seq][0]) * TOKEN % strategy.memory.page_group_bytes == 0
    physical = [move.physical for move in strategy.drain()]
    assert len(set(physical)) == len(physical)


def test_a_released_row_keeps_its_page_groups_and_fits_best(life):
    life = life(80, 8)
    strategy = life.strategy
    for length in (8, 32, 16):
        life.write(life.admit(length), length)
    rows = [strategy._row(seq) for seq in range(3)]
    for seq in range(3):
        life.release(seq)
    life.admit(10)
    assert strategy._row(3) == rows[2], "two page groups: the row with two, not the one with four"
    assert strategy.drain() == []
    life.admit(40)
    assert strategy._row(4) == rows[1]
    assert [type(move) for move in strategy.drain()] == [Map]


def test_page_groups_are_stolen_from_the_fullest_idle_row_and_only_when_none_is_unmapped(life):
    life = life(64, 8)
    for length in (40, 16):
        life.write(life.admit(length), length)
    fuller = life.strategy._row(0)
    life.release(0)
    life.release(1)
    life.admit(16)  # the row with two
    assert life.write(2, 24), "the last one under no row"
    assert life.strategy.counts["stolen"] == 0
    assert life.write(2, 40)
    assert life.strategy.counts["stolen"] == 2
    assert len(life.strategy.mapped[fuller]) == 3
    life.check()


def test_a_live_rows_surplus_is_taken_last(life):
    life = life(48, 8)
    life.write(life.admit(48), 48)
    life.truncate(0, 9)
    assert life.strategy.usage().held == 2 * 8 * TOKEN
    assert life.strategy.usage().backed == 48 * TOKEN
    assert life.strategy.drain() == [], "they stay mapped"
    assert life.write(life.admit(20), 20)
    assert life.strategy.counts["stolen"] == 3
    assert life.write(0, 17), "the fourth that is left"
    assert life.call("extend", 0, 17, 25) is None
    life.check()


# --- sharing


@pytest.mark.parametrize(
    ("group_tokens", "length", "shared", "copied"),
    [
        (4, 3, 0, 3), (4, 4, 1, 0), (4, 5, 1, 1), (4, 12, 3, 0), (4, 15, 3, 3),
        (2.5, 4, 0, 4), (2.5, 5, 2, 0), (2.5, 6, 2, 1), (2.5, 14, 4, 4),
        (1 / 3, 3, 9, 0), (1.5, 2, 0, 2), (1.5, 3, 2, 0), (1.5, 7, 4, 1),
    ],
)  # fmt: skip
def test_a_fork_shares_whole_page_groups_and_copies_the_rest(life, group_tokens, length, shared, copied):
    life = life(120, group_tokens)
    strategy = life.strategy
    life.write(life.admit(length), length)
    needed = strategy.memory.page_groups(length)
    child = life.fork(0)
    moves = strategy.drain()
    maps, copies = [m for m in moves if isinstance(m, Map)], [m for m in moves if isinstance(m, Copy)]
    base, target = strategy._row(child) * strategy.row_groups, int(strategy.table[child][0])
    assert maps[:shared] == [Map(base + i, strategy.mapped[0][i]) for i in range(shared)]
    assert len(maps) == needed
    source = int(strategy.table[0][0])
    expected = [Copy(source + length - copied, target + length - copied, copied)] if copied else []
    assert copies == expected
    assert strategy.usage().held == (2 * needed - shared) * strategy.memory.page_group_bytes
    assert strategy.returns(0) == strategy.returns(child) == strategy.memory.tokens(needed - shared)
    strategy.moves = moves
    life.check()


def test_what_each_writes_after_a_fork_is_its_own(life):
    life = life(120, 4)
    life.write(life.admit(10), 10)
    children = [life.fork(0), life.fork(0, 8), life.fork(0, 5)]
    for seq, upto in zip((0, *children), (20, 13, 9, 6), strict=True):
        assert life.write(seq, upto)
        life.check()
    grandchild = life.fork(children[0], 13)
    assert life.strategy.owners == {
        physical: 5 - (index > 0)
        for index, physical in enumerate(life.strategy.mapped[life.strategy._row(grandchild)][:2])
    } | {life.strategy.mapped[life.strategy._row(grandchild)][2]: 2}
    assert life.write(grandchild, 14)
    life.check()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_a_shared_page_group_lives_until_its_last_owner_leaves(life, order):
    life = life(64, 4)
    life.write(life.admit(10), 10)
    life.fork(0)
    life.fork(1, 6)
    assert life.strategy.usage().held == 5 * 4 * TOKEN
    for seq in order:
        assert life.strategy.returns(seq) * TOKEN == released(life, seq)
        life.check()
    assert life.strategy.owners == {}
    assert life.strategy.usage().held == 0


def released(life, seq):
    """Bytes that its release gave back."""
    before = life.strategy.usage().held
    life.release(seq)
    return before - life.strategy.usage().held


def test_a_row_that_shared_is_empty_of_what_others_hold_and_keeps_its_own(life):
    life = life(64, 4)
    life.write(life.admit(12), 12)
    child = life.fork(0)
    life.write(child, 18)
    row = life.strategy._row(child)
    own = life.strategy.mapped[row][3:]
    life.shadow.carry_out()
    life.release(child)
    assert sorted(life.strategy.mapped[row]) == sorted(own)
    assert len(own) == 2
    life.check()
    again = life.admit(8)
    assert life.strategy._row(again) == row
    assert life.write(again, 8)
    life.check()


def test_theft_never_takes_what_is_held(life):
    """The parent has left and its row is idle, but the child still holds what lies under both."""
    life = life(32, 4)
    life.write(life.admit(16), 16)
    child = life.fork(0)
    life.release(0)
    assert life.write(life.admit(16), 16)
    assert life.write(child, 16)
    assert life.call("extend", child, 16, 17) is None
    life.check()


def test_a_fork_that_does_not_fit_changes_nothing(life):
    life = life(16, 4)
    life.write(life.admit(14), 14)
    assert life.fork(0, 12) == 1
    assert life.call("fork", 0, arrival(9, 14)) is None, "no room for the last two tokens"
    for _ in range(4):
        assert life.fork(0, 12) is not None
    assert life.call("fork", 0, arrival(9, 12)) is None, "no row"
    life.check()


def test_a_fork_into_a_row_with_page_groups_keeps_them_behind_the_prefix(life):
    life = life(80, 4, max_len=16, max_seqs=2)
    for _ in range(2):
        life.admit(16)
    for seq in (0, 1):
        life.write(seq, 16)
        life.release(seq)
    life.write(life.admit(6), 6)
    child = life.fork(2)
    row = life.strategy._row(child)
    life.check()
    assert len(life.strategy.mapped[row]) == 4
    assert life.strategy.counts["stolen"] == 0
    moves = [type(m) for m in life.strategy.drain()]
    assert moves == []
    assert life.shadow.committed == set(life.shadow.mapping.values())


def test_where_a_sequence_is_cut_back_into_what_it_shares_it_gets_a_copy(life):
    """Page groups of several owners are never written, a rejected draft or not."""
    life = life(64, 4)
    life.write(life.admit(15), 15)
    child = life.fork(0)
    life.truncate(child, 6)
    assert life.strategy.usage().rounded == 0
    life.check()
    assert life.write(child, 9)
    life.check()
    assert life.write(0, 20)
    life.check()
    assert sorted(life.strategy.owners.values()) == [2]


def test_a_copy_that_does_not_fit_is_refused(life):
    life = life(16, 4)
    life.write(life.admit(16), 16)
    child = life.fork(0)
    life.truncate(child, 14)
    assert life.call("extend", child, 14, 15) is None
    life.release(0)
    assert life.write(child, 15), "alone it owns them"
    life.check()


@pytest.mark.parametrize("call", ["extend", "release", "truncate", "returns", "fork"])
def test_unknown_sequences_are_key_errors(call, life):
    strategy = life(64, 4).strategy
    arguments = {"extend": (7, 0, 1), "truncate": (7, 0), "fork": (7, arrival(8, 1))}
    with pytest.raises(KeyError):
        getattr(strategy, call)(*arguments.get(call, (7,)))


def test_open_sequences_cannot_be_opened_again(life):
    life = life(64, 4)
    life.write(life.admit(8), 8)
    before = state(life.strategy)
    for call in (lambda: life.strategy.admit(arrival(0, 4), 4), lambda: life.strategy.fork(0, arrival(0, 4))):
        with pytest.raises(KeyError):
            call()
    assert state(life.strategy) == before


@pytest.mark.parametrize("group_tokens", [4, 8, 2.5, 1.5, 1 / 3, 16, 13 / 3])
@pytest.mark.parametrize("tokens", [70, 160])
def test_random_lives(life, group_tokens, tokens):
    """Admissions, growth, forks, forks of forks, truncation into shared parts, and departures in any order."""
    seen = set()
    for seed in range(3):
        rng, one = random.Random(seed), life(tokens, group_tokens, max_len=40)
        for _ in range(60):
            seen.add(step(one, rng))
            one.check()
        for seq in rng.sample(sorted(one.stored), len(one.stored)):
            one.release(seq)
            one.check()
        assert one.strategy.usage().held == one.strategy.rooms_total == 0
        assert one.strategy.owners == {}
        assert one.strategy.surplus == {}
    assert seen >= {"admit", "refused", "write", "fork", "truncate", "release"}


def step(life, rng):
    live = sorted(life.stored)
    action = rng.choice(("admit", "write", "write", "write", "fork", "truncate", "release"))
    if action == "admit" or not live:
        length = rng.randint(1, min(30, life.strategy.longest))
        seq = life.admit(length, rng.randint(1, length))
        return "refused" if seq is None else "admit"
    seq = rng.choice(live)
    stored = len(life.stored[seq])
    if action == "write" or not stored:
        upto = min(stored + rng.choice((1, 1, 3, 9)), life.strategy.memory.max_len)
        return "write" if life.write(seq, upto) else "refused"
    if action == "fork":
        return "fork" if life.fork(seq, rng.choice((stored, rng.randint(1, stored)))) is not None else "refused"
    if action == "truncate":
        life.truncate(seq, rng.randint(1, stored))
    else:
        life.release(seq)
    return action


# --- costs, in counts


def lines_of(call):
    """Lines of Python that the call runs."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("shared", [False, True])
def test_rows_of_thousands_of_page_groups_cost_no_more(shared):
    """Finding an idle row, and whom to steal from, looked through every possible number of page groups."""
    counts = []
    for max_len in (64, 64_000):
        strategy = VAttention(memory(64, 1, max_len=max_len, max_seqs=8))
        strategy.admit(arrival(0, 60), 60)
        strategy.release(0)
        if shared:
            strategy.admit(arrival(8, 3), 3)
            strategy.fork(8, arrival(9, 3))
        steps = [
            lines_of(lambda strategy=strategy: strategy.admit(arrival(1, 1), 1)),
            lines_of(lambda strategy=strategy: strategy.admit(arrival(2, 2), 2)),
            lines_of(lambda strategy=strategy: strategy.extend(2, 2, 9)),
            lines_of(lambda strategy=strategy: strategy.release(2)),
        ]
        assert strategy.counts["stolen"] > 0
        counts.append(steps)
    assert counts[0] == counts[1]
    assert sum(counts[0]) < 500


def test_a_long_row_leaves_at_the_cost_of_what_it_shares():
    strategy = VAttention(memory(9000, 1, max_len=8000, max_seqs=4))
    strategy.admit(arrival(0, 8000), 8000)
    strategy.fork(0, arrival(1, 4))
    assert strategy.returns(0) == 7996
    strategy.drain()
    strategy.release(0)
    assert len(strategy.drain()) == 4 * 3, "four taken away, four others moved into their places"
