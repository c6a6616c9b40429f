"""Swapping: what is shared is copied once, what is still here is not brought again, and a full host refuses whole."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.strategies.cached_blocks import CachedBlocks
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.paged import Paged
from kvlab.strategies.prefix import Prefix
from kvlab.strategies.radix import Radix
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Arrival, Copy, Memory, Strategy, SwapIn, SwapOut
from kvlab.testing.snapshot import Snapshot

SIZE = 4


def memory(tokens: int = 64, host: int = 64) -> Memory:
    return Memory(tokens * 8, 8, 32, 8, 32, page_group_bytes=64, host_bytes=host * 8)


def arrival(seq: int, length: int) -> Arrival:
    return Arrival(seq, length, length, 32, 32, np.arange(length, dtype=np.int32))


def family(strategy: Strategy, length: int, count: int) -> None:
    """Sequences 0 to count - 1: the first and its forks, all of `length` tokens."""
    assert strategy.admit(arrival(0, length), length)
    if isinstance(strategy, CachedBlocks):
        strategy.wrote(0, length, arrival(0, length).ids)
    for seq in range(1, count):
        assert strategy.fork(0, arrival(seq, length))
    strategy.drain()


def moved(strategy: Strategy, kind: type) -> int:
    """Tokens in the moves of that kind since the last drain."""
    return sum(move.tokens for move in strategy.drain() if isinstance(move, kind))


def tokens_held(strategy: Strategy) -> int:
    return strategy.host_held() // 8


BLOCKS = {"paged": Paged, "prefix": Prefix, "radix": Radix}


@pytest.fixture(params=BLOCKS)
def blocks(request):
    return BLOCKS[request.param](memory(), SIZE)


def test_forks_are_copied_out_once(blocks):
    family(blocks, 10, 3)
    assert all(blocks.swap_out(seq, 10) for seq in range(3))
    assert tokens_held(blocks) == 12
    assert moved(blocks, SwapOut) == 10
    assert blocks.usage().held == 0


def test_forks_come_back_together(blocks):
    """The full blocks once. The last one is filled in part, and each goes on in its own."""
    family(blocks, 10, 3)
    for seq in range(3):
        blocks.swap_out(seq, 10)
    blocks.clear()  # or the cache would still have them
    blocks.drain()
    for seq in (1, 2, 0):
        grant = blocks.swap_in(arrival(seq, 10))
        assert (grant.hit, grant.room) == (10, 12)
    assert moved(blocks, SwapIn) == 8 + 3 * 2
    assert blocks.usage().held == (2 + 3) * SIZE * 8
    assert tokens_held(blocks) == 0


def test_what_a_sibling_never_gave_up_is_taken_in_place(blocks):
    family(blocks, 10, 2)
    blocks.swap_out(1, 10)
    blocks.drain()
    blocks.swap_in(arrival(1, 10))
    assert moved(blocks, SwapIn) == 2
    assert blocks.table[1][:2].tolist() == blocks.table[0][:2].tolist()
    assert blocks.table[1][2] != blocks.table[0][2]


def test_who_goes_again_copies_only_what_is_new(blocks):
    family(blocks, 10, 2)
    assert blocks.swap_out(0, 10)
    assert blocks.swap_out(1, 10)
    assert blocks.swap_in(arrival(0, 10))
    assert blocks.extend(0, 10, 13) == 16
    blocks.drain()
    assert blocks.swap_out(0, 13)
    assert moved(blocks, SwapOut) == 5  # its third block, which it went on writing, and its fourth
    assert tokens_held(blocks) == 12 + 8


def test_a_twin_that_is_cut_back_and_written_over_is_none():
    """The host has what the sibling had; the block has something else by now."""
    strategy = Paged(memory(), SIZE)
    family(strategy, 8, 2)
    strategy.swap_out(1, 8)
    strategy.truncate(0, 6)
    strategy.extend(0, 6, 7)
    strategy.drain()
    strategy.swap_in(arrival(1, 8))
    assert moved(strategy, SwapIn) == 4
    assert strategy.table[1][1] != strategy.table[0][1]


def test_a_block_that_grew_has_one_twin_the_later_one():
    """It stayed with its first twin too; when that one was given back, the second was not to be found any more."""
    strategy = Paged(memory(), SIZE)
    family(strategy, 10, 2)
    strategy.swap_out(1, 10)
    strategy.extend(0, 10, 12)
    strategy.fork(0, arrival(2, 12))
    strategy.swap_out(0, 12)
    strategy.forget(1)
    strategy.drain()
    assert strategy.swap_out(2, 12)
    assert moved(strategy, SwapOut) == 0
    strategy.forget(0)
    strategy.forget(2)
    assert strategy.host_held() == 0


def test_rows_are_copied_each_for_itself():
    strategy = VAttention(memory())
    family(strategy, 16, 2)
    assert strategy.swap_out(0, 16)
    assert strategy.swap_out(1, 16)
    assert moved(strategy, SwapOut) == 32
    assert tokens_held(strategy) == 32


@pytest.mark.parametrize("cls", [Contiguous, VAttention, Paged, Prefix, Radix])
def test_a_full_host_refuses_and_nothing_changes(cls):
    """A sequence longer than the host's room had made a server wait for ever (vllm #546)."""
    strategy = cls(memory(host=16), SIZE) if issubclass(cls, Paged) else cls(memory(host=16))
    assert strategy.admit(arrival(0, 20), 20)
    assert strategy.admit(Arrival(1, 9, 9, 32, 32), 9)
    strategy.drain()
    before = Snapshot(strategy)
    assert strategy.swap_out(0, 20) is False
    assert before.difference(strategy) is None
    assert strategy.swap_out(1, 9) is True
    assert strategy.swap_out(0, 20) is False
    strategy.release(0)


@pytest.mark.parametrize("cls", [Contiguous, Paged, Prefix])
def test_who_finds_no_room_stays_on_the_host(cls):
    strategy = cls(memory(32), SIZE) if issubclass(cls, Paged) else cls(memory(32))
    assert strategy.admit(arrival(0, 10), 10)
    assert strategy.swap_out(0, 10)
    assert strategy.admit(Arrival(1, 32, 32, 32, 32), 32)
    strategy.drain()
    before = Snapshot(strategy)
    assert strategy.swap_in(arrival(0, 10)) is None
    assert before.difference(strategy) is None
    strategy.release(1)
    assert strategy.swap_in(arrival(0, 10)).hit == 10


def test_what_is_forgotten_frees_its_room_unless_a_sibling_has_it():
    strategy = Paged(memory(), SIZE)
    family(strategy, 10, 2)
    strategy.swap_out(0, 10)
    strategy.swap_out(1, 10)
    strategy.forget(0)
    assert tokens_held(strategy) == 12
    strategy.forget(1)
    assert tokens_held(strategy) == 0
    for call in (lambda: strategy.forget(1), lambda: strategy.swap_in(arrival(1, 10))):
        with pytest.raises(KeyError):
            call()


def test_the_cache_gives_back_what_it_kept():
    strategy = Prefix(memory(), SIZE)
    family(strategy, 10, 1)
    strategy.swap_out(0, 10)
    strategy.drain()
    assert strategy.swap_in(arrival(0, 10)).hit == 10
    moves = strategy.drain()
    assert [move.tokens for move in moves if isinstance(move, SwapIn)] == [2]
    assert not any(isinstance(move, Copy) for move in moves)


def test_what_comes_back_is_published_again():
    strategy = Prefix(memory(), SIZE)
    family(strategy, 10, 1)
    strategy.swap_out(0, 10)
    strategy.clear()
    assert strategy.lookup(arrival(5, 10)) == 0
    strategy.swap_in(arrival(0, 10))
    strategy.wrote(0, 10, arrival(0, 10).ids)
    assert strategy.lookup(arrival(5, 10)) == 8


def test_a_large_host_costs_nothing_until_it_is_used():
    strategy = Paged(Memory(8 * 64, 8, 32, 8, 32, host_bytes=8 << 40), SIZE)
    assert strategy.host.free == (1 << 40) // SIZE
    assert len(strategy.host.given) == len(strategy.host.users) == 0
