"""Faults that others have published, of mapped memory: half mapped, mapped twice, lost between two lists.

docs/faults.md lists them all.
"""

from __future__ import annotations

import pytest
import torch

from kvlab.memory.faults import fail
from kvlab.memory.host_vmm import PAGE_BYTES, VmmError
from kvlab.memory.virtual import VirtualStore
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Arrival, Memory

LAYERS, DIM = 2, 64
TOKEN = 2 * LAYERS * DIM * 4  # bytes
GROUP = 2 * LAYERS * PAGE_BYTES


def arrival(seq, length):
    return Arrival(seq, length, length, 64, 64)


def history(strategy):
    """Steps of growth, theft, sharing and departures; after each the store carries out what was asked."""
    strategy.admit(arrival(0, 40), 40)
    strategy.admit(arrival(1, 20), 20)
    yield
    strategy.release(0)
    strategy.extend(1, 20, 60)
    yield
    strategy.fork(1, arrival(2, 50))
    yield
    strategy.release(1)
    strategy.admit(arrival(3, 30), 30)
    yield
    strategy.truncate(2, 10)
    strategy.extend(2, 10, 12)
    yield


@pytest.fixture
def pair():
    """A strategy and the store that serves it, closed in the end."""
    made = []

    def make():
        memory = Memory(7 * GROUP, TOKEN, 64, 4, 64, (None,) * LAYERS, GROUP)
        strategy = VAttention(memory)
        store = VirtualStore(LAYERS, strategy.pools[0].slots, 1, DIM, torch.float32, PAGE_BYTES, 7)
        made.append(store)
        return strategy, store

    yield make
    for store in made:
        store.close()
        assert store.ledger.created == store.ledger.released


def live(strategy, store, kind, nth):
    """The history with the nth call of a kind refused; how many there were, and whether it was told."""
    with fail(kind, nth) as calls:
        try:
            for _ in history(strategy):
                store.apply(strategy.drain())
        except VmmError:
            return calls.made, True
    return calls.made, False


@pytest.mark.parametrize("kind", ["map", "unmap", "copy"])
def test_whichever_call_is_refused_it_is_told_and_no_page_group_is_half_there(pair, kind):
    """Of a page group's pages the first stayed mapped when a later one failed (kvcached #364, #365, #430; vllm
    #34602, in waking up), the failure was swallowed and the memory used all the same (kvcached #372), or what
    was undone was released twice, or mapped over (vllm #45565, #36651)."""
    count, told = live(*pair(), kind, 0)
    assert count > 0
    assert not told
    for nth in range(1, count + 1):
        strategy, store = pair()
        made, told = live(strategy, store, kind, nth)
        assert told
        assert made >= nth
        ledger = store.ledger
        assert ledger.created - ledger.released == len(ledger.backed)
        assert store.committed_bytes() == store.accounted_bytes() == len(ledger.backed) * GROUP
        assert set(ledger.physical.values()) <= ledger.backed
        for virtual in range(ledger.virtual_groups):  # in every layer, or nowhere
            there = {place.readable(virtual * PAGE_BYTES) for place in store._reservations}
            assert there == {virtual in ledger.physical}
        store.close()
        assert store.committed_bytes() == 0


def taken_from_behind_a_row(virtual):
    """A row that is longer than its sequence gives up what lies behind it."""
    scene = virtual(32, max_seqs=2)
    scene.start(0, [5] * 16)
    scene.start(1, [6] * 16)
    scene.release(0)
    scene.start(2, [7] * 4)
    assert scene.grow(1, 8, 8)
    return scene


def pushed_out_of_a_row(virtual):
    """A fork goes to a row that is mapped to its end: what lay at its start finds no room behind the prefix."""
    scene = virtual(48, max_len=16, max_seqs=2)
    for seq in (0, 1):
        scene.start(seq, [5] * 16)
    scene.release(0, 1)
    scene.start(2, [6] * 6)
    assert scene.fork(2, 3)
    return scene


def shared_and_left(virtual):
    """A parent leaves, and others take what it had for itself."""
    scene = virtual(64, max_seqs=4)
    scene.start(0, [5] * 30)
    assert scene.fork(0, 1, 21)
    scene.check()
    scene.release(0)
    assert scene.fill(10)
    scene.cut(1, 6)
    scene.release(10)
    assert scene.grow(1, 8)
    return scene


@pytest.mark.parametrize("history", [taken_from_behind_a_row, pushed_out_of_a_row, shared_and_left])
def test_every_page_group_is_always_somewhere(virtual, history):
    """Page groups that were neither free nor reserved, while a thread mapped ahead, stopped the server (kvcached
    #371); handles released twice, or over a mapping that was left (vllm #45565, #36651). The contract carries out
    each move, and judges."""
    scene = history(virtual)
    scene.check()
    scene.strategy.ahead()
    scene.check()
    scene.end()


def test_nothing_is_unmapped_under_a_launch(virtual):
    """Pages were unmapped while kernels still ran over them (kvcached #465). All page groups lie under two rows, one of
    which a launch writes: what is asked for beside it, and the theft that the next step plans, leave that one alone."""
    scene = virtual(64, max_len=40)
    trial = scene.trial
    for seq in (0, 1):
        scene.start(seq, [20 + seq] * 31)
    assert scene.grow(1, 5)
    trial.settle()
    trial.issue([(trial.running[1], 32)])
    trial.ahead()
    assert trial.seen["moves beside a launch"] == 0
    scene.release(0)
    assert scene.admit(2, [7] * 20)
    assert trial.extend(trial.running[1], 36)
    assert scene.strategy.counts["stolen"] == 1
    trial.drain()
    assert trial.harmless()
    trial.apply()
    trial.complete()
    scene.compute(2)
    scene.end()


@pytest.mark.parametrize("group_bytes", [48, 96, 120, 192, 32])
def test_a_page_group_is_reusable_when_its_last_owner_has_left(virtual, group_bytes):
    """One live block kept each page from being given back: none of 89 was free (kvcached #359, #390). A row has its
    page groups for itself, or shares whole ones: what a release gives back can be had, to the last."""
    scene = virtual(60, page_group_bytes=group_bytes, max_seqs=4)
    scene.start(0, [5] * 25)
    assert scene.fork(0, 1, 13)
    free = scene.strategy.usage().free
    scene.trial.settle()
    back = scene.strategy.returns(0)
    scene.release(0)
    scene.check()
    assert 0 <= (scene.strategy.usage().free - free) - back * 48 < 48
    assert sum(len(scene.trial.running[seq].ids) for seq in scene.fill(10)) >= min(32, back)
    scene.compute(1)
    scene.end()
