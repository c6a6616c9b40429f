"""Page groups under a store: mapped, moved, aliased and dropped, and nothing half done where a call fails."""

from __future__ import annotations

import threading
from time import sleep

import numpy as np
import pytest
import torch

from kvlab.errors import UsageError
from kvlab.kernels.attention import attend
from kvlab.kernels.pool import take
from kvlab.kernels.reference import attend as truth
from kvlab.kernels.write import write
from kvlab.memory.faults import fail
from kvlab.memory.host_vmm import PAGE_BYTES, Reservation, VmmError
from kvlab.memory.view import make_view
from kvlab.memory.virtual import VirtualStore
from kvlab.moves import Copy, Drop, Map, Unmap

LAYERS, HEADS, DIM = 3, 2, 16  # of the stores in conftest.py
SLOTS_PER_PAGE = PAGE_BYTES // (HEADS * DIM * 4)  # float32: 32
GROUP_BYTES = 2 * LAYERS * PAGE_BYTES


def test_map_unmap_drop_move_exactly_one_page_a_reservation(virtual, fill, holds):
    assert virtual.committed_bytes() == 0
    virtual.apply([Map(0, 1), Map(1, 0)])
    assert virtual.committed_bytes() == virtual.accounted_bytes() == 2 * GROUP_BYTES
    fill(virtual, 0, 2 * SLOTS_PER_PAGE, 1)
    virtual.apply([Unmap(1)])
    assert virtual.committed_bytes() == virtual.accounted_bytes() == 2 * GROUP_BYTES
    virtual.apply([Drop(0)])
    assert virtual.committed_bytes() == virtual.accounted_bytes() == GROUP_BYTES
    assert holds(virtual, 0, SLOTS_PER_PAGE, 1)


def test_a_page_group_takes_its_contents_along(virtual, fill, holds):
    virtual.apply([Map(0, 2)])
    fill(virtual, 0, SLOTS_PER_PAGE, 7)
    virtual.apply([Unmap(0), Map(5, 2)])
    assert holds(virtual, 5 * SLOTS_PER_PAGE, 6 * SLOTS_PER_PAGE, 7)


def test_moves_take_effect_one_by_one(virtual, fill, holds):
    """Physical group 0 is copied into while under 1, then moved under 3 and copied from there."""
    virtual.apply([Map(0, 1)])
    fill(virtual, 0, SLOTS_PER_PAGE, 3)
    n = SLOTS_PER_PAGE
    virtual.apply([Map(1, 0), Copy(0, n, n), Unmap(1), Map(3, 0), Map(1, 2), Copy(3 * n, n, n)])
    assert holds(virtual, n, 2 * n, 3)
    assert holds(virtual, 3 * n, 4 * n, 3)


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ([Map(0, 0), Map(0, 1)], "virtual page group 0 is mapped already"),
        ([Map(6, 0)], "virtual page group 6 of 6"),
        ([Map(0, 4)], "physical page group 4 of 4"),
        ([Unmap(0)], "virtual page group 0 is not mapped"),
        ([Map(0, 0), Unmap(0), Unmap(0)], "virtual page group 0 is not mapped"),
        ([Map(0, 0), Drop(0)], "physical page group 0 is still mapped"),
        ([Map(0, 0), Map(1, 0), Unmap(0), Drop(0)], "physical page group 0 is still mapped"),
        ([Drop(0)], "physical page group 0 has no memory"),
        ([Map(0, 0), Copy(0, SLOTS_PER_PAGE, 1)], r"virtual page groups \[1\] are not mapped"),
        ([Map(0, 0), Map(2, 1), Copy(SLOTS_PER_PAGE - 1, 2 * SLOTS_PER_PAGE, 2)], r"groups \[1\] are not mapped"),
    ],
)
def test_what_a_strategy_must_never_ask(virtual, moves, message):
    with pytest.raises(AssertionError, match=message):
        virtual.apply(moves)


def test_the_ledger_counts(virtual):
    virtual.apply([Map(0, 0), Map(1, 1), Unmap(0), Map(2, 0), Unmap(1), Drop(1)])
    ledger = virtual.ledger
    assert (ledger.maps, ledger.unmaps) == (3, 2)
    assert (ledger.created, ledger.released) == (2, 1)
    assert ledger.physical == {2: 0}
    assert ledger.backed == {0}
    virtual.close()
    assert (ledger.created, ledger.released, ledger.backed) == (2, 2, set())


def test_one_page_group_lies_under_several_rows(virtual, fill, holds):
    """What is written under one shows under the other; the memory counts once and stays until the last is gone."""
    virtual.apply([Map(0, 2), Map(3, 2), Map(4, 1)])
    n, ledger = SLOTS_PER_PAGE, virtual.ledger
    assert virtual.committed_bytes() == virtual.accounted_bytes() == 2 * GROUP_BYTES
    fill(virtual, 0, n, 5)
    assert holds(virtual, 3 * n, 4 * n, 5)
    virtual.apply([Copy(3 * n, 4 * n, n), Unmap(0)])
    assert holds(virtual, 3 * n, 5 * n, 5)
    assert not any(place.readable(0) for place in virtual._reservations)
    assert (ledger.created, ledger.released) == (2, 0)
    virtual.apply([Unmap(3), Drop(2)])
    assert virtual.committed_bytes() == virtual.accounted_bytes() == GROUP_BYTES


@pytest.mark.parametrize("fails_at", range(2 * LAYERS))
def test_an_unmap_that_fails_half_way_leaves_everything_mapped(virtual, fails_at, fill, holds):
    virtual.apply([Map(0, 3), Map(1, 3), Map(2, 1)])
    fill(virtual, 0, SLOTS_PER_PAGE, 6)
    with fail("unmap", fails_at + 1), pytest.raises(VmmError, match="unmap"):
        virtual.apply([Unmap(0)])
    assert holds(virtual, 0, 2 * SLOTS_PER_PAGE, 6)
    assert virtual.committed_bytes() == virtual.accounted_bytes() == 2 * GROUP_BYTES
    virtual.apply([Unmap(0), Map(0, 0)])
    assert holds(virtual, SLOTS_PER_PAGE, 2 * SLOTS_PER_PAGE, 6)


@pytest.mark.parametrize("fails_at", range(2 * LAYERS))
def test_an_alias_that_fails_half_way_leaves_the_first_alone(virtual, fails_at, fill, holds):
    virtual.apply([Map(0, 3)])
    fill(virtual, 0, SLOTS_PER_PAGE, 6)
    with fail("map", fails_at + 1), pytest.raises(VmmError, match="map"):
        virtual.apply([Map(1, 3)])
    assert holds(virtual, 0, SLOTS_PER_PAGE, 6)
    assert virtual.committed_bytes() == virtual.accounted_bytes() == GROUP_BYTES
    assert not any(place.readable(PAGE_BYTES) for place in virtual._reservations)


def test_sliced_pages_hold_a_part_of_every_layer(fill, holds):
    """Two pages a group, and a layer's slots lie a whole slot of all layers apart."""
    store = VirtualStore(LAYERS, 40, HEADS, DIM, torch.float32, PAGE_BYTES, 4, sliced=True)
    slots = PAGE_BYTES // (LAYERS * HEADS * DIM * 4)
    store.apply([Map(0, 3), Map(1, 0)])
    assert store.committed_bytes() == store.accounted_bytes() == 2 * 2 * PAGE_BYTES
    for layer in range(LAYERS):
        for kv_SHD in store.layer(layer):
            assert kv_SHD.shape == (40, HEADS, DIM)
            assert kv_SHD.stride() == (LAYERS * HEADS * DIM, DIM, 1)
    fill(store, 0, 2 * slots, 3)
    assert holds(store, 0, 2 * slots, 3)
    fill(store, 0, 5, 9)
    store.apply([Copy(0, slots, 5)])
    assert holds(store, slots, slots + 5, 9)
    with pytest.raises(AssertionError, match="not mapped"):
        store.apply([Copy(0, 2 * slots + 1, 1)])  # it ends in page group 2
    store.close()
    assert store.committed_bytes() == 0


@pytest.mark.parametrize("fails_at", range(2 * LAYERS))
@pytest.mark.parametrize("backed", [False, True])
def test_a_map_that_fails_half_way_leaves_nothing_behind(virtual, fails_at, backed, fill, holds):
    """What it had mapped is unmapped, what it had backed is dropped, and the same map works afterwards."""
    virtual.apply([Map(1, 1), *([Map(0, 3)] if backed else [])])
    fill(virtual, SLOTS_PER_PAGE, 2 * SLOTS_PER_PAGE, 1)
    if backed:
        fill(virtual, 0, SLOTS_PER_PAGE, 2)
        virtual.apply([Unmap(0)])
    before = virtual.committed_bytes()
    with fail("map", fails_at + 1) as calls, pytest.raises(VmmError, match="map: refused"):
        virtual.apply([Map(0, 3), Map(2, 2)])
    assert calls.made == fails_at + 1
    assert virtual.committed_bytes() == virtual.accounted_bytes() == before
    assert not any(place.readable(0) for place in virtual._reservations)
    virtual.apply([Map(0, 3)])
    assert holds(virtual, SLOTS_PER_PAGE, 2 * SLOTS_PER_PAGE, 1)
    if backed:
        assert holds(virtual, 0, SLOTS_PER_PAGE, 2)


def test_page_groups_need_not_hold_whole_tokens():
    """Slots of 768 bytes in pages of 4096: a token lies across two page groups."""
    store = VirtualStore(2, 64, 3, 64, torch.float32, PAGE_BYTES, 8)
    store.apply([Map(0, 5), Map(1, 2), Map(2, 7)])
    k_SHD, v_SHD = store.layer(1)
    whole = 3 * PAGE_BYTES // 768
    k_SHD[:whole] = torch.arange(whole)[:, None, None]
    v_SHD[:whole] = -k_SHD[:whole]
    assert (k_SHD[:whole, 2, 63] == torch.arange(whole)).all()
    assert not store.layer(0)[0][:whole].any()
    store.apply([Copy(0, 8, 8)])
    assert (k_SHD[8:16, 0, 0] == torch.arange(8)).all()
    with pytest.raises(AssertionError, match="not mapped"):
        store.apply([Copy(0, 9, 8)])  # its last token ends in page group 3
    store.close()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("tile", [1, 16])
def test_slots_far_out_are_addressed(tile, compiled):
    """2^31 elements and more into a layer: an index of 32 bits would wrap."""
    slots = 12_000_000  # of 1 KiB: 11 GiB for each of the two reservations, 3 * 10^9 elements
    store = VirtualStore(1, slots, 4, 64, torch.float32, 1 << 16, 2, tile=tile)
    store.apply([Map(0, 0), Map(slots * 1024 // (1 << 16) - 1, 1)])
    keys, values = store.layer(0)
    slot_T, kv_2THD = torch.arange(slots - 20, slots), torch.randn(2, 20, 4, 64)
    write(keys, values, slot_T, *kv_2THD, compiled)
    assert torch.equal(take(keys, slot_T), kv_2THD[0])
    store.apply([Copy(slots - 20, 0, 20)])
    assert torch.equal(take(values, torch.arange(20)), kv_2THD[1])
    for new in (1, 20):
        q_TQD, start = torch.randn(new, 12, 64), np.array([20 - new])
        view = make_view(np.array([[slots - 20]], np.int32), start, np.array([20]), None)
        o_TQD = attend(q_TQD, keys, values, view, 0.125, compiled)
        torch.testing.assert_close(o_TQD.double(), truth(q_TQD, keys, values, view, 0.125), rtol=1e-5, atol=1e-6)
    store.close()


@pytest.mark.parametrize("page_bytes", [0, 100, PAGE_BYTES + 512])
def test_pages_the_system_cannot_map_are_refused(page_bytes):
    with pytest.raises(UsageError, match=f"page_group_bytes={page_bytes}: allowed are multiples of {PAGE_BYTES}"):
        VirtualStore(1, 10, 1, 64, torch.float32, page_bytes, 4)


def test_a_virtual_pool_needs_a_page_group():
    with pytest.raises(UsageError, match="0 page groups"):
        VirtualStore(1, 10, 1, 64, torch.float32, PAGE_BYTES, 0)


def test_moves_beside_a_launch_are_done_while_the_caller_goes_on(virtual, monkeypatch):
    """No time is measured: the mapping waits for what the caller does after it has asked for it."""
    launched, calls, plain = threading.Event(), [], Reservation.map

    def waiting(*arguments):
        calls.append((threading.get_ident(), launched.wait(10)))
        plain(*arguments)

    monkeypatch.setattr(Reservation, "map", waiting)
    virtual.apply_beside([Map(0, 0)])
    launched.set()
    virtual.join()
    assert [begun for _, begun in calls] == [True] * 2 * LAYERS
    assert threading.get_ident() not in dict(calls)
    assert virtual.committed_bytes() == virtual.accounted_bytes() == GROUP_BYTES


def test_moves_before_the_next_launch_come_after_those_beside_this_one(virtual, monkeypatch):
    plain = Reservation.map

    def slow(*arguments):
        sleep(0.002)
        plain(*arguments)

    monkeypatch.setattr(Reservation, "map", slow)
    virtual.apply_beside([Map(group, group) for group in range(3)])
    virtual.apply([Unmap(group) for group in range(3)])
    assert virtual.ledger.physical == {}
