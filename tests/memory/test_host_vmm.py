"""Linux virtual memory: what is mapped, what is backed, and what dies."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
import torch

from kvlab.errors import UsageError
from kvlab.memory import host_vmm
from kvlab.memory.host_vmm import PAGE_BYTES, PhysicalPool, Reservation, VmmError

GROUP = 16 * PAGE_BYTES


@pytest.fixture
def pool():
    pool = PhysicalPool(4 * GROUP)
    yield pool
    pool.close()


@pytest.fixture
def reservation():
    reservation = Reservation(8 * GROUP)
    yield reservation
    reservation.close()


def bytes_of(reservation):
    return reservation.tensor(torch.uint8, (reservation.nbytes,))


def mappings(reservation):
    """How many mappings the operating system keeps for the range."""
    count = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(part, 16) for part in line.split()[0].split("-"))
        count += start < reservation.base + reservation.nbytes and stop > reservation.base
    return count


def test_a_mapped_group_is_backed_at_once_and_reads_back(pool, reservation):
    assert pool.committed_bytes() == 0
    reservation.map(2 * GROUP, pool, GROUP, GROUP)
    assert pool.committed_bytes() == GROUP
    view = bytes_of(reservation)[2 * GROUP : 3 * GROUP]
    assert not view.any()
    view.fill_(7)
    assert view.sum() == 7 * GROUP
    assert pool.committed_bytes() == GROUP


def test_contents_stay_while_unmapped_and_move_to_where_they_are_mapped_next(pool, reservation):
    reservation.map(0, pool, GROUP, GROUP)
    bytes_of(reservation)[:GROUP] = 5
    reservation.unmap(0, GROUP)
    assert pool.committed_bytes() == GROUP
    reservation.map(6 * GROUP, pool, GROUP, GROUP)
    assert (bytes_of(reservation)[6 * GROUP : 7 * GROUP] == 5).all()


def test_one_physical_group_shows_at_two_addresses(pool, reservation):
    reservation.map(0, pool, 0, GROUP)
    reservation.map(3 * GROUP, pool, 0, GROUP)
    bytes_of(reservation)[5] = 9
    assert bytes_of(reservation)[3 * GROUP + 5] == 9
    assert pool.committed_bytes() == GROUP


def test_drop_gives_the_memory_back_and_zeroes_it(pool, reservation):
    reservation.map(0, pool, 0, 2 * GROUP)
    bytes_of(reservation)[: 2 * GROUP] = 3
    reservation.unmap(0, 2 * GROUP)
    pool.drop(0, GROUP)
    assert pool.committed_bytes() == GROUP
    reservation.map(0, pool, 0, 2 * GROUP)
    view = bytes_of(reservation)
    assert not view[:GROUP].any()
    assert (view[GROUP : 2 * GROUP] == 3).all()


def test_neighbours_merge_into_one_mapping(pool, reservation):
    for index in (2, 0, 1):
        reservation.map(index * GROUP, pool, index * GROUP, GROUP)
    assert mappings(reservation) == 2  # what is mapped, and the rest


@pytest.mark.parametrize("offset", [0, GROUP - 1, GROUP, 2 * GROUP - 1, 2 * GROUP, 8 * GROUP - 1])
def test_only_what_is_mapped_can_be_read(pool, reservation, ending, offset):
    reservation.map(GROUP, pool, 0, GROUP)
    mapped = GROUP <= offset < 2 * GROUP
    assert reservation.readable(offset) == mapped
    assert ending(lambda: int(bytes_of(reservation)[offset])) == (0 if mapped else signal.SIGSEGV)


def test_unmapped_memory_kills_its_reader_again(pool, reservation, ending):
    reservation.map(0, pool, 0, GROUP)
    reservation.unmap(0, GROUP)
    assert not reservation.readable(0)
    assert ending(lambda: int(bytes_of(reservation)[0])) == signal.SIGSEGV


def test_a_tensor_that_outlives_close_finds_nothing_there(reservation, pool, ending):
    reservation.map(0, pool, 0, GROUP)
    view = bytes_of(reservation)
    base = reservation.base
    reservation.close()
    reservation.close()
    assert ending(lambda: int(view[0])) == signal.SIGSEGV
    other = Reservation(8 * GROUP)
    assert not base <= other.base < base + reservation.nbytes, "the addresses are still the tensor's"
    other.close()


def test_addresses_go_back_once_nothing_refers_to_them():
    def address_space():
        return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES

    size = 1 << 36
    before = address_space()
    reservation = Reservation(size)
    view = reservation.tensor(torch.float32, (10,))
    assert address_space() - before >= size
    reservation.close()
    del reservation, view
    assert address_space() - before < size


def test_tens_of_gigabytes_of_addresses_cost_no_memory(pool):
    reservation = Reservation(64 << 30)
    far = reservation.nbytes - GROUP
    reservation.map(far, pool, 0, GROUP)
    view = reservation.tensor(torch.float32, (reservation.nbytes // 4,))
    view[-1] = 2.5
    assert float(view[far // 4 :].sum()) == 2.5
    assert pool.committed_bytes() == GROUP
    reservation.close()


@pytest.mark.parametrize("nbytes", [0, -PAGE_BYTES, 1, PAGE_BYTES + 1])
@pytest.mark.parametrize("kind", [PhysicalPool, Reservation])
def test_sizes_are_whole_pages(kind, nbytes):
    with pytest.raises(UsageError, match=f"multiples of the system's page, {PAGE_BYTES}"):
        kind(nbytes)


def test_a_pool_larger_than_the_free_memory_is_refused():
    with pytest.raises(UsageError, match="allowed is at most"):
        PhysicalPool(1 << 50)


@pytest.mark.parametrize(
    ("offset", "pool_offset", "nbytes"),
    [
        (1, 0, GROUP),
        (0, 1, GROUP),
        (0, 0, GROUP + 1),
        (0, 0, 0),
        (8 * GROUP, 0, GROUP),
        (-GROUP, 0, GROUP),
        (0, 4 * GROUP, GROUP),
        (0, 3 * GROUP, 2 * GROUP),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_mapped(pool, reservation, offset, pool_offset, nbytes):
    with pytest.raises(ValueError, match="bytes"):
        reservation.map(offset, pool, pool_offset, nbytes)
    assert mappings(reservation) == 1
    assert pool.committed_bytes() == 0


def test_a_pool_cannot_grow_or_shrink(pool):
    for size in (pool.nbytes + PAGE_BYTES, PAGE_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(pool.fd, size)


def test_closed_pools_and_reservations_say_so(pool, reservation):
    pool.close()
    pool.close()
    assert pool.committed_bytes() == 0
    with pytest.raises(ValueError, match="pool is closed"):
        reservation.map(0, pool, 0, GROUP)
    reservation.close()
    for use in (lambda: reservation.unmap(0, GROUP), lambda: bytes_of(reservation)):
        with pytest.raises(ValueError, match="reservation is closed"):
            use()


def test_a_fork_cannot_drop_its_parents_memory(pool, reservation, ending):
    reservation.map(0, pool, 0, GROUP)
    bytes_of(reservation)[:GROUP] = 4

    def child():
        with pytest.raises(ValueError, match="belongs to process"):
            pool.drop(0, GROUP)
        reservation.close()
        pool.close()

    assert ending(child) == 0
    assert (bytes_of(reservation)[:GROUP] == 4).all()


def test_running_out_of_mappings_names_the_limit(pool, reservation, monkeypatch):
    class Refusing:
        def mmap(self, *_):
            host_vmm.ctypes.set_errno(errno.ENOMEM)
            return host_vmm._MAP_FAILED

    monkeypatch.setattr(host_vmm, "_libc", Refusing)
    with pytest.raises(VmmError, match=r"mmap: Cannot allocate memory.*vm\.max_map_count=\d+") as caught:
        reservation.map(0, pool, 0, GROUP)
    assert caught.value.call == "mmap"
    monkeypatch.undo()
