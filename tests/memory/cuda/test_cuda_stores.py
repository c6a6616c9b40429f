"""A virtual store over a CUDA driver: handles, aliases, what is undone, and what is left at the end."""

from __future__ import annotations

import pytest
import torch

from kvlab.errors import UsageError
from kvlab.memory.build import open_vmm
from kvlab.memory.cuda.vmm import CudaVmm
from kvlab.memory.host_vmm import VmmError
from kvlab.memory.virtual import VirtualStore
from kvlab.moves import Copy, Drop, Map, Unmap

PAGE, LAYERS, HEADS, DIM = 4096, 2, 1, 64
SLOTS = PAGE // (HEADS * DIM * 4)  # of a page
PAGES = 2 * LAYERS  # of a page group
NONE = {"handles": 0, "mappings": 0, "reservations": 0}


@pytest.fixture
def new_store(device):
    def make(*, sliced=False, ahead=False, page=PAGE):
        return VirtualStore(
            LAYERS, 6 * SLOTS, HEADS, DIM, torch.float32, page, 4, sliced, CudaVmm(device.open(), ahead)
        )

    return make


@pytest.fixture
def store(new_store, device, nothing_lives):
    store = new_store()
    yield store
    store.close()
    del store
    nothing_lives(device)


def fill(store, group, value):
    for layer in range(LAYERS):
        for index, kv_SHD in enumerate(store.layer(layer)):
            kv_SHD[group * SLOTS : (group + 1) * SLOTS] = value + 2 * layer + index


def holds(store, group, value):
    return all(
        bool((kv_SHD[group * SLOTS : (group + 1) * SLOTS] == value + 2 * layer + index).all())
        for layer in range(LAYERS)
        for index, kv_SHD in enumerate(store.layer(layer))
    )


def test_page_groups_are_mapped_moved_and_dropped(store, device):
    store.apply([Map(0, 1), Map(1, 0)])
    assert store.committed_bytes() == store.accounted_bytes() == 2 * PAGES * PAGE
    fill(store, 0, 1)
    fill(store, 1, 5)
    store.apply([Unmap(0), Map(4, 1), Copy(4 * SLOTS, SLOTS + 3, 2)])
    assert holds(store, 4, 1)
    assert store.layer(0)[0][SLOTS + 3 : SLOTS + 6, 0, 0].tolist() == [1, 1, 5]
    store.apply([Unmap(1), Drop(0)])
    assert store.committed_bytes() == store.accounted_bytes() == PAGES * PAGE
    assert device.live()["handles"] == device.live()["mappings"] == PAGES


def test_a_handle_is_recycled_until_its_page_is_dropped(store, device):
    device.fail("", 0)
    for _ in range(3):
        store.apply([Map(0, 0), Unmap(0)])
    assert (device.calls("cuMemCreate"), device.calls("cuMemRelease")) == (PAGES, 0)
    store.apply([Drop(0), Map(0, 0)])
    assert (device.calls("cuMemCreate"), device.calls("cuMemRelease")) == (2 * PAGES, PAGES)


def test_handles_may_be_created_ahead_of_all_use(new_store, device):
    store = new_store(ahead=True)
    assert store.committed_bytes() == store.accounted_bytes() == 4 * PAGES * PAGE
    device.fail("cuMemCreate", 1)
    store.apply([Map(group, group) for group in range(4)])
    store.apply([Unmap(2), Drop(2)])
    assert store.committed_bytes() == store.accounted_bytes() == 3 * PAGES * PAGE
    store.close()
    assert store.ledger.created == store.ledger.released == 4


def test_one_page_group_under_two_rows_is_there_once_and_stays_until_both_are_gone(store, device):
    """A fork: what one writes the other reads, and the handle goes when nobody has it."""
    store.apply([Map(0, 2), Map(3, 2)])
    fill(store, 0, 7)
    assert holds(store, 3, 7)
    assert (device.live()["handles"], device.live()["mappings"]) == (PAGES, 2 * PAGES)
    store.apply([Unmap(0)])
    assert holds(store, 3, 7)
    with pytest.raises(AssertionError, match="still mapped"):
        store.apply([Drop(2)])
    with pytest.raises(ValueError, match="is mapped at 1 addresses"):
        store._pool.drop(2 * PAGE, PAGE)
    store.apply([Unmap(3), Drop(2)])
    assert device.live()["handles"] == 0


def test_sliced_the_layers_lie_side_by_side_in_two_reservations(new_store, device):
    store = new_store(sliced=True)
    store.apply([Map(0, 0)])
    assert device.live() == {**device.live(), "handles": 2, "mappings": 2, "reservations": 2}
    k_SHD, v_SHD = store.layer(1)
    assert k_SHD.stride() == (LAYERS * HEADS * DIM, DIM, 1)
    k_SHD[: SLOTS // LAYERS], v_SHD[: SLOTS // LAYERS] = 3.0, 4.0
    assert not store.layer(0)[0][: SLOTS // LAYERS].any()
    store.close()


def test_a_page_of_several_granules_is_one_handle(new_store, device):
    store = new_store(page=3 * PAGE)
    device.fail("", 0)
    store.apply([Map(0, 0), Map(1, 3)])
    assert device.calls("cuMemCreate") == device.calls("cuMemMap") == device.calls("cuMemSetAccess") == 2 * PAGES
    fill(store, 5, 1)
    assert holds(store, 5, 1)
    store.close()


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
@pytest.mark.parametrize("nth", range(1, PAGES + 1))
def test_a_map_that_fails_half_way_leaves_nothing_behind(store, device, call, nth):
    store.apply([Map(1, 1)])
    fill(store, 1, 4)
    before = device.live()
    device.fail(call, nth)
    with pytest.raises(VmmError, match=f"{call}: CUDA_ERROR_OUT_OF_MEMORY"):
        store.apply([Map(0, 3)])
    assert device.live() == before
    assert store.committed_bytes() == store.accounted_bytes() == PAGES * PAGE
    store.apply([Map(0, 3)])
    fill(store, 0, 8)
    assert holds(store, 0, 8)
    assert holds(store, 1, 4)


def test_a_page_without_access_is_not_left_mapped(vmm, device):
    place, pool = vmm.reservation(PAGE, PAGE), vmm.pool(PAGE, PAGE)
    device.fail("cuMemSetAccess", 1)
    with pytest.raises(VmmError, match="cuMemSetAccess"):
        place.map(0, pool, 0, PAGE)
    assert device.live()["mappings"] == 0
    place.map(0, pool, 0, PAGE)
    place.tensor(torch.float32, (PAGE // 4,)).fill_(1.0)


@pytest.mark.parametrize("nth", range(1, PAGES + 1))
def test_an_unmap_that_fails_half_way_is_undone(store, device, nth):
    store.apply([Map(0, 3)])
    fill(store, 0, 4)
    before = device.live()
    device.fail("cuMemUnmap", nth)
    with pytest.raises(VmmError, match="cuMemUnmap: CUDA_ERROR"):
        store.apply([Unmap(0)])
    assert device.live() == before
    assert holds(store, 0, 4)


def test_moves_beside_a_launch_are_done_in_a_thread_with_the_context(store):
    store.apply_beside([Map(0, 0)])
    store.join()
    assert store.committed_bytes() == PAGES * PAGE


def test_a_thread_that_forgets_the_context_is_refused(store, monkeypatch):
    monkeypatch.setattr(CudaVmm, "enter_thread", lambda vmm: None)
    store.apply_beside([Map(0, 0)])
    with pytest.raises(VmmError, match="CUDA_ERROR_INVALID_CONTEXT: no context is current in this thread"):
        store.join()
    assert store.committed_bytes() == store.accounted_bytes() == 0


@pytest.mark.parametrize("page_kib", [64, 128, 256])
def test_small_page_groups_are_refused_with_the_reason_and_the_alternative(new_device, page_kib):
    device = new_device(64 << 20, 2 << 20)
    with pytest.raises(UsageError) as caught:
        VirtualStore(32, 4096, 8, 128, torch.bfloat16, page_kib << 10, 4, False, CudaVmm(device.open()))
    text = str(caught.value)
    assert text.startswith(f"page_group_bytes={page_kib << 10}: allowed here are multiples of 2097152")
    assert f"{page_kib} KiB take the changed open-source UVM driver of the vAttention paper" in text
    tokens = (2 << 20) / (32 * 8 * 128 * 2)
    assert f"page_group_bytes=2097152 with strategy.page_layout=sliced has {tokens:.1f} tokens" in text
    assert "\n" not in text


@pytest.mark.parametrize("page", [0, -PAGE, PAGE + 512, PAGE // 2])
def test_sizes_that_the_driver_does_not_map_are_refused(new_store, device, page):
    with pytest.raises(UsageError, match=f"page_group_bytes={page}: allowed here are multiples of {PAGE}"):
        new_store(page=page)
    assert not any(device.live().values())


def test_a_pool_larger_than_what_is_free_is_refused(new_device):
    device = new_device(PAGES * 3 * PAGE)
    with pytest.raises(UsageError, match=f"pool of {PAGES * 4 * PAGE} bytes: allowed is at most .* {PAGES * 3 * PAGE}"):
        VirtualStore(LAYERS, SLOTS, HEADS, DIM, torch.float32, PAGE, 4, False, CudaVmm(device.open()))
    assert not any(device.live().values())


def test_memory_that_runs_out_is_a_refusal_of_the_driver(new_device):
    device = new_device(4 * PAGES * PAGE)
    driver = device.open()
    store = VirtualStore(LAYERS, 6 * SLOTS, HEADS, DIM, torch.float32, PAGE, 4, False, CudaVmm(driver))
    hoarded = driver.create(PAGES * PAGE)  # somebody else's
    with pytest.raises(VmmError, match="cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY: .* lower pool_bytes"):
        store.apply([Map(group, group) for group in range(4)])
    assert store.committed_bytes() == store.accounted_bytes() == 3 * PAGES * PAGE
    driver.release(hoarded)
    store.close()


def test_what_cannot_be_given_back_is_named(new_store, device):
    store = new_store()
    store.apply([Map(0, 0), Map(1, 1)])
    device.fail("cuMemUnmap", 1, lasting=True)
    with pytest.raises(VmmError, match=f"close: {2 * PAGES} mappings left, after cuMemUnmap: CUDA_ERROR"):
        store.close()
    assert device.live()["mappings"] == 2 * PAGES


@pytest.mark.parametrize(
    "call", ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuEventDestroy", "cuDevicePrimaryCtxRelease"]
)
def test_what_is_refused_once_at_the_end_is_told_and_given_back(store, device, call):
    store.apply([Map(0, 0), Map(1, 1)])
    device.fail(call, 1)
    with pytest.raises(VmmError, match=f"{call}: CUDA_ERROR"):
        store.close()
    assert device.calls(call) > 1
    assert not any(device.live().values())


@pytest.mark.parametrize(("nbytes", "page"), [(-PAGE, PAGE), (PAGE + 5, PAGE), (PAGE, 0), (PAGE, PAGE // 2 + 1)])
def test_sizes_that_are_no_whole_pages_are_refused(vmm, nbytes, page):
    """Pools of them were made, and failed when they were used."""
    for make in (vmm.pool, vmm.reservation):
        with pytest.raises(ValueError, match="allowed are whole pages"):
            make(nbytes, page)


def test_a_closed_pool_gives_no_memory(vmm, device):
    """It made a handle anew, which nobody released."""
    pool, place = vmm.pool(2 * PAGE, PAGE), vmm.reservation(2 * PAGE, PAGE)
    place.map(0, pool, 0, PAGE)
    pool.close()
    with pytest.raises(ValueError, match="the pool is closed"):
        place.map(PAGE, pool, PAGE, PAGE)
    place.close()
    vmm.close()
    assert device.live() == {**device.live(), **NONE}


def test_the_device_is_let_go_when_the_last_tensor_is_gone(new_store, device):
    """It was let go with the store, and the addresses of a tensor that outlived it could not be freed."""
    store = new_store()
    k_SHD = store.layer(0)[0]
    store.close()
    assert device.live() == {**device.live(), "mappings": 0, "reservations": 1, "contexts": 1}
    del k_SHD, store
    assert not any(device.live().values())


@pytest.mark.parametrize("device_name", ["gpu", "cuda:x", "cuda:-1", "cpu:0", ""])
def test_devices_that_are_none_are_refused(device_name):
    with pytest.raises(UsageError, match=f"device={device_name}: allowed is cpu, cuda or cuda:N"):
        open_vmm(device_name)
