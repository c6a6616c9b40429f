"""The emulators refuse what a CUDA driver refuses, each with its error; the errors are those seen on a real one."""

from __future__ import annotations

import ctypes
import signal
import threading

import pytest

from kvlab.memory.host_vmm import VmmError

PAGE, CAPACITY = 4096, 1 << 26


def refused(call: str, error: str):
    return pytest.raises(VmmError, match=f"^{call}: CUDA_ERROR_{error}: ")


@pytest.fixture
def mapped(driver):
    """(address of four pages, a handle of two that lies under the first two, accessible)."""
    address, handle = driver.reserve(4 * PAGE), driver.create(2 * PAGE)
    driver.map(address, 2 * PAGE, handle)
    driver.set_access(address, 2 * PAGE)
    return address, handle


def put(address: int, value: int) -> None:
    ctypes.c_uint8.from_address(address).value = value


def get(address: int) -> int:
    return ctypes.c_uint8.from_address(address).value


def test_a_handle_may_lie_at_two_addresses_and_keeps_its_contents(driver, mapped):
    address, handle = mapped
    put(address + 5, 7)
    driver.map(address + 2 * PAGE, 2 * PAGE, handle)
    driver.set_access(address + 2 * PAGE, 2 * PAGE)
    assert get(address + 2 * PAGE + 5) == 7
    driver.unmap(address, 2 * PAGE)
    put(address + 2 * PAGE + PAGE, 8)
    driver.unmap(address + 2 * PAGE, 2 * PAGE)
    driver.map(address, 2 * PAGE, handle)
    driver.set_access(address, 2 * PAGE)
    assert (get(address + 5), get(address + PAGE)) == (7, 8)


@pytest.mark.parametrize("offset", [0, PAGE])
def test_nothing_is_mapped_over_what_is_mapped(driver, mapped, offset):
    with refused("cuMemMap", "INVALID_VALUE"):
        driver.map(mapped[0] + offset, 2 * PAGE, driver.create(2 * PAGE))


def test_a_part_of_a_handle_is_not_supported(driver, mapped):
    address, handle = mapped
    with refused("cuMemMap", "NOT_SUPPORTED"):
        driver.map(address + 2 * PAGE, PAGE, handle)
    with refused("cuMemMap", "NOT_SUPPORTED"):
        driver.map(address + 2 * PAGE, PAGE, handle, PAGE)


@pytest.mark.parametrize(("at", "nbytes"), [(PAGE // 2, PAGE), (2 * PAGE, PAGE // 2), (4 * PAGE, PAGE), (-PAGE, PAGE)])
def test_maps_are_aligned_whole_and_inside_a_reservation(driver, mapped, at, nbytes):
    handle = driver.create(PAGE)
    with refused("cuMemMap", "INVALID_VALUE"):
        driver.map(mapped[0] + at, nbytes, handle)


@pytest.mark.parametrize("nbytes", [0, 1, PAGE - 1, PAGE + 1])
def test_sizes_are_multiples_of_the_granularity(driver, nbytes):
    for call, name in ((driver.create, "cuMemCreate"), (driver.reserve, "cuMemAddressReserve")):
        with refused(name, "INVALID_VALUE"):
            call(nbytes)


def test_handles_that_never_were_or_are_released_are_refused(driver, mapped):
    address, handle = mapped
    with refused("cuMemRelease", "INVALID_VALUE"):
        driver.release(handle + 1000)
    with refused("cuMemMap", "INVALID_VALUE"):
        driver.map(address + 2 * PAGE, 2 * PAGE, handle + 1000)
    driver.release(handle)
    with refused("cuMemRelease", "INVALID_VALUE"):
        driver.release(handle)
    with refused("cuMemMap", "INVALID_VALUE"):
        driver.map(address + 2 * PAGE, 2 * PAGE, handle)


def test_released_memory_goes_when_it_is_mapped_nowhere(driver, mapped):
    address, handle = mapped
    driver.release(handle)
    put(address, 1)
    assert driver.free_bytes() == CAPACITY - 2 * PAGE
    driver.unmap(address, 2 * PAGE)
    assert driver.free_bytes() == CAPACITY


def test_memory_ends(driver):
    driver.create(CAPACITY - PAGE)
    with refused("cuMemCreate", "OUT_OF_MEMORY"):
        driver.create(2 * PAGE)
    driver.create(PAGE)
    assert driver.free_bytes() == 0


def test_whole_mappings_are_unmapped_and_given_access(driver, mapped):
    address, _ = mapped
    for call, name in ((driver.unmap, "cuMemUnmap"), (driver.set_access, "cuMemSetAccess")):
        for at, nbytes in ((0, PAGE), (PAGE, PAGE), (0, 3 * PAGE), (2 * PAGE, 2 * PAGE)):
            with refused(name, "INVALID_VALUE"):
                call(address + at, nbytes)
    driver.unmap(address, 2 * PAGE)
    with refused("cuMemUnmap", "INVALID_VALUE"):
        driver.unmap(address, 2 * PAGE)


def test_several_mappings_go_at_once(driver, mapped, device):
    address, _ = mapped
    driver.map(address + 2 * PAGE, PAGE, driver.create(PAGE))
    driver.set_access(address, 3 * PAGE)
    put(address + 2 * PAGE, 1)
    driver.unmap(address, 3 * PAGE)
    assert device.live()["mappings"] == 0


def test_addresses_are_freed_whole_and_empty(driver, mapped):
    address, _ = mapped
    with refused("cuMemAddressFree", "INVALID_VALUE"):
        driver.free(address, 4 * PAGE)
    driver.unmap(address, 2 * PAGE)
    for at, nbytes in ((0, 2 * PAGE), (PAGE, 3 * PAGE)):
        with refused("cuMemAddressFree", "INVALID_VALUE"):
            driver.free(address + at, nbytes)
    driver.free(address, 4 * PAGE)
    with refused("cuMemAddressFree", "INVALID_VALUE"):
        driver.free(address, 4 * PAGE)


def test_memory_without_access_kills_whoever_touches_it(driver, mapped, ending):
    address, _ = mapped
    driver.map(address + 2 * PAGE, PAGE, driver.create(PAGE))
    assert ending(lambda: get(address)) == 0
    assert ending(lambda: get(address + 2 * PAGE)) == signal.SIGSEGV, "mapped, but no access was set"
    assert ending(lambda: get(address + 3 * PAGE)) == signal.SIGSEGV, "not mapped"
    driver.unmap(address, 2 * PAGE)
    assert ending(lambda: get(address)) == signal.SIGSEGV, "not mapped any more"
    driver.map(address, PAGE, driver.create(PAGE))
    assert ending(lambda: get(address)) == signal.SIGSEGV, "access is the mapping's, not the address's"


def test_a_thread_needs_the_context_to_be_current(driver):
    answers = []

    def work():
        with refused("cuMemCreate", "INVALID_CONTEXT"):
            driver.create(PAGE)
        driver.set_current()
        answers.append(driver.create(PAGE))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers


def test_the_nth_call_fails_and_those_after_it_where_that_lasts(driver, device):
    device.fail("cuMemCreate", 2)
    driver.create(PAGE)
    driver.reserve(PAGE)
    with refused("cuMemCreate", "OUT_OF_MEMORY"):
        driver.create(PAGE)
    driver.create(PAGE)
    assert (device.calls("cuMemCreate"), device.calls("cuMemAddressReserve")) == (3, 1)
    device.fail("cuMemCreate", 1, lasting=True, error="CUDA_ERROR_INVALID_VALUE")
    for _ in range(3):
        with refused("cuMemCreate", "INVALID_VALUE"):
            driver.create(PAGE)


def test_memory_taken_from_under_a_running_launch_kills_the_device(driver, mapped, device):
    """The driver neither waits nor refuses: the unmapping succeeds, and nothing works after it."""
    address, _ = mapped
    device.launch([(address + 3 * PAGE, PAGE), (address + 100, 1)])
    driver.unmap(address, 2 * PAGE)
    assert device.dead
    for call, name in (
        (lambda: driver.create(PAGE), "cuMemCreate"),
        (lambda: driver.map(address, PAGE, 1), "cuMemMap"),
        (driver.set_current, "cuCtxSetCurrent"),
        (driver.create_event, "cuEventCreate"),
        (driver.free_bytes, "cuMemGetInfo"),
    ):
        with refused(name, "ILLEGAL_ADDRESS"):
            call()


def test_memory_that_no_running_launch_reads_may_go(driver, mapped, device):
    address, _ = mapped
    device.finish(device.launch([(address, PAGE)]))
    device.launch([(address + 2 * PAGE, PAGE)])
    driver.unmap(address, 2 * PAGE)
    assert not device.dead


def test_an_event_happens_when_the_launches_before_it_have_ended(driver, mapped, device):
    address, _ = mapped
    event = driver.create_event()
    device.launch([(address, PAGE)])
    driver.record(event)
    later = device.launch([(address + 2 * PAGE, PAGE)], held=True)
    driver.synchronize(event)  # would wait for ever for the later one
    driver.unmap(address, 2 * PAGE)
    assert not device.dead
    device.finish(later)
    driver.destroy_event(event)
    with pytest.raises(VmmError, match="cuEventRecord: CUDA_ERROR_INVALID_"):
        driver.record(event)


def test_waiting_for_a_launch_that_is_held_takes_until_it_is_finished(driver, device):
    event, launch, order = driver.create_event(), device.launch([], held=True), []
    driver.record(event)

    def wait():
        driver.set_current()
        driver.synchronize(event)
        order.append("waited")

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.05)
    order.append("finished")
    device.finish(launch)
    thread.join()
    assert order == ["finished", "waited"]
