"""Page groups under several rows: shared by forks, copied where they are written, given back by the last owner."""

from __future__ import annotations

import pytest

from kvlab.strategy import Copy, Map


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
    assert life.strategy.usage().held == 5 * 4 * life.strategy.memory.token_bytes
    for seq in order:
        assert life.strategy.returns(seq) * life.strategy.memory.token_bytes == released(life, seq)
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


def test_a_fork_that_does_not_fit_changes_nothing(life, arrival):
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
