"""The same on a real device: what the emulators claim of the driver, tensors over its memory, and the fence."""

from __future__ import annotations

import pytest
import torch

from kvlab.memory.build import open_vmm
from kvlab.memory.cuda.bindings import CudaDriver
from kvlab.memory.dense import DenseStore
from kvlab.memory.host_vmm import VmmError
from kvlab.memory.virtual import VirtualStore
from kvlab.moves import Copy, Drop, Map, Unmap

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

HEADS, DIM, LAYERS = 8, 128, 2
PAGE = 2 << 20
SLOTS = PAGE // (HEADS * DIM * 2)  # bfloat16


@pytest.fixture
def store():
    vmm = open_vmm("cuda")
    store = VirtualStore(LAYERS, 6 * SLOTS, HEADS, DIM, torch.bfloat16, PAGE, 4, False, vmm)
    yield store
    torch.cuda.synchronize()
    store.close()
    assert not any(vmm.live.values())


def test_the_driver_refuses_what_the_emulators_refuse():
    driver = CudaDriver()
    unit = driver.granularity
    address, handle = driver.reserve(4 * unit), driver.create(2 * unit)
    driver.map(address, 2 * unit, handle)
    driver.set_access(address, 2 * unit)
    for call, error in (
        (lambda: driver.map(address + unit, 2 * unit, handle), "INVALID_VALUE"),
        (lambda: driver.map(address + 2 * unit, unit, handle), "NOT_SUPPORTED"),
        (lambda: driver.map(address + 2 * unit, unit, handle, unit), "NOT_SUPPORTED"),
        (lambda: driver.set_access(address + 2 * unit, unit), "INVALID_VALUE"),
        (lambda: driver.free(address, 4 * unit), "INVALID_VALUE"),
        (lambda: driver.create(64 << 10), "INVALID_VALUE"),
    ):
        with pytest.raises(VmmError, match=f"CUDA_ERROR_{error}"):
            call()
    driver.unmap(address, 2 * unit)
    driver.release(handle)
    driver.free(address, 4 * unit)
    driver.close()


def test_moves_take_effect_on_the_device(store):
    store.apply([Map(0, 1), Map(1, 0), Map(3, 1)])
    k_SHD, v_SHD = store.layer(1)
    assert k_SHD.device.type == "cuda"
    k_SHD[:SLOTS], v_SHD[:SLOTS] = 3.0, 4.0
    assert (k_SHD[3 * SLOTS : 4 * SLOTS] == 3.0).all(), "one handle under two addresses"
    store.apply([Copy(0, SLOTS, 16), Unmap(0), Unmap(3), Drop(1)])
    assert (v_SHD[SLOTS : SLOTS + 16] == 4.0).all()
    assert store.committed_bytes() == store.accounted_bytes() == 2 * LAYERS * PAGE


def test_attention_over_a_tail_that_is_not_mapped(store):
    store.apply([Map(0, 2)])
    k_SHD, v_SHD = store.layer(0)
    generator = torch.Generator("cuda").manual_seed(0)
    plain = [torch.randn(SLOTS, HEADS, DIM, device="cuda", dtype=torch.bfloat16, generator=generator) for _ in "kv"]
    k_SHD[:SLOTS], v_SHD[:SLOTS] = plain
    q = torch.randn(1, HEADS, 1, DIM, device="cuda", dtype=torch.bfloat16, generator=generator)
    ours, expected = (
        torch.nn.functional.scaled_dot_product_attention(q, *(kv[:SLOTS].transpose(0, 1)[None] for kv in pair))
        for pair in ((k_SHD, v_SHD), plain)
    )
    assert torch.equal(ours, expected)


@pytest.mark.parametrize("beside", [False, True])
def test_memory_is_not_taken_from_under_a_running_kernel(store, beside):
    """Without the fence the context would be dead at the synchronize."""
    store.apply([Map(0, 0), Map(1, 1)])
    k_SHD, _ = store.layer(0)
    k_SHD[: 2 * SLOTS] = 1.0
    torch.cuda._sleep(200_000_000)
    total = k_SHD[: 2 * SLOTS].float().sum()
    if beside:
        store.apply([])
        store.apply_beside([Unmap(1), Map(2, 1)])
        store.join()
    else:
        store.apply([Unmap(1), Map(2, 1)])
    torch.cuda.synchronize()
    assert total.item() == 2 * SLOTS * HEADS * DIM


def test_mapping_beside_a_kernel_does_not_wait_for_it(store):
    store.apply([Map(0, 0)])
    done = torch.cuda.Event()
    torch.cuda._sleep(1_000_000_000)
    done.record()
    store.apply_beside([Map(1, 1)])
    store.join()
    assert not done.query(), "the kernel ran on while the page group was mapped"


def test_a_dense_store_lies_on_the_device():
    store = DenseStore(LAYERS, 100, HEADS, DIM, torch.bfloat16, "cuda")
    k_SHD, _ = store.layer(1)
    k_SHD[:] = 2.0
    store.apply([Copy(0, 50, 10)])
    assert k_SHD.device.type == "cuda"
    assert store.committed_bytes() == store.accounted_bytes() == 2 * LAYERS * 100 * HEADS * DIM * 2
    store.close()
