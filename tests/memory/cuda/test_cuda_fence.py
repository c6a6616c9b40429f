"""Memory is taken away only when the last launch that may read it has ended, and only that launch is waited for."""

from __future__ import annotations

import threading

import pytest
import torch

from kvlab.kernels.copy import copy_all
from kvlab.memory import store as store_module
from kvlab.memory.cuda.fence import Fence
from kvlab.memory.cuda.vmm import CudaVmm
from kvlab.memory.host_vmm import VmmError
from kvlab.memory.virtual import VirtualStore
from kvlab.moves import Copy, Map, Unmap

PAGE = 4096
SLOTS = PAGE // 256


@pytest.fixture
def store(vmm):
    store = VirtualStore(1, 8 * SLOTS, 1, 64, torch.float32, PAGE, 8, False, vmm)
    store.apply([Map(group, group) for group in range(4)])
    return store


@pytest.fixture
def launch(store, device):
    """launch(page group, held): a kernel begins to read the values in it, which are unmapped last."""

    def begin(group: int, held: bool = False) -> int:
        return device.launch([(store._reservations[-1].base + group * PAGE, PAGE)], held)

    return begin


def close(store, device):
    assert not device.dead
    store.close()
    assert not any(device.live().values())


def test_unmapping_waits_for_the_launches_before_it(store, device, launch):
    device.fail("", 0)
    for _ in range(3):
        launch(1)
        store.apply([Unmap(1), Map(1, 1)])
    assert device.calls("cuEventSynchronize") == 3
    launch(0)
    close(store, device)  # which takes all of it away


def test_mapping_waits_for_nobody(store, device, launch):
    running = launch(1, held=True)
    store.apply([Map(4, 4), Map(5, 5)])  # would wait for ever
    device.finish(running)
    close(store, device)


def test_one_list_waits_once(store, device, launch):
    launch(0)
    device.fail("", 0)
    store.apply([Unmap(0), Unmap(1), Unmap(2), Map(0, 5)])
    assert (device.calls("cuEventRecord"), device.calls("cuEventSynchronize")) == (1, 1)
    close(store, device)


def test_unmapping_waits_for_copies_of_its_own_list(store, device, monkeypatch):
    """A copy is a launch like others: the device is at it when the host goes on."""

    def running(layers, moves):
        copy_all(layers, moves)
        for source, _, tokens, _ in moves:
            device.launch([(kv_SHD[source].data_ptr(), tokens * 256) for kv_SHD in layers[0]])

    monkeypatch.setattr(store_module, "copy_all", running)
    store.apply([Copy(0, SLOTS, SLOTS), Unmap(0), Map(0, 5), Copy(SLOTS, 0, 2), Unmap(1)])
    close(store, device)


@pytest.mark.parametrize("before", [True, False])
def test_what_goes_beside_a_launch_waits_for_those_before_and_not_for_it(store, device, launch, before):
    """Whether it is begun before that launch or behind it."""
    earlier = launch(1, held=True)
    store.apply([])
    if before:
        store.apply_beside([Map(6, 6), Unmap(1)])
    beside = launch(0, held=True)
    if not before:
        store.apply_beside([Map(6, 6), Unmap(1)])
    assert 1 in store.ledger.physical, "the earlier launch reads it"
    device.finish(earlier)
    store.join()  # would wait for ever for the launch beside it
    assert set(store.ledger.physical) == {0, 2, 3, 6}
    device.finish(beside)
    close(store, device)


def test_a_wait_that_failed_is_still_to_be_done(store, device, launch):
    launch(1)
    store.apply([])
    device.fail("cuEventSynchronize", 1)
    for fails in (True, False):
        store.apply_beside([Unmap(1)])
        if fails:
            with pytest.raises(VmmError, match="cuEventSynchronize"):
                store.join()
    store.join()
    close(store, device)


def test_the_caller_goes_on_while_the_thread_waits(store, device, launch):
    running, went_on = launch(1, held=True), threading.Event()
    store.apply([])
    store.apply_beside([Unmap(1)])
    went_on.set()
    device.finish(running)
    store.join()
    assert went_on.is_set()
    close(store, device)


@pytest.mark.parametrize("name", ["wait", "mark"])
def test_a_store_that_does_not_wait_is_caught(store, device, launch, monkeypatch, name):
    """The planted fault that the emulators are there for: unmapped before the reader is done."""
    monkeypatch.setattr(Fence, name, lambda fence: None)
    launch(1)
    store.apply([Unmap(1)])  # the driver says yes
    assert device.dead
    with pytest.raises(VmmError, match="CUDA_ERROR_ILLEGAL_ADDRESS: a kernel touched memory that was not mapped"):
        store.apply([Map(1, 1)])
    with pytest.raises(VmmError, match="^close: 8 handles, 6 mappings left, after .*ILLEGAL_ADDRESS"):
        store.close()


def test_beside_a_launch_that_reads_it_nothing_may_go_and_it_is_caught(store, device, launch):
    """A strategy that gives away what a launch in flight reads breaks its contract; no store can wait for that."""
    store.apply([])
    launch(1, held=True)
    store.apply_beside([Unmap(1)])
    store.join()
    assert device.dead
    with pytest.raises(VmmError, match="ILLEGAL_ADDRESS"):
        store.close()


def test_a_device_that_was_never_asked_for_anything_has_no_event(driver, device):
    vmm = CudaVmm(driver)
    vmm.wait()
    vmm.close()
    assert not any(device.live().values())
