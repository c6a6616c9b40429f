"""Tensors over a device's addresses: made as asked for, alive as long as any view, told when they are gone."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap

import pytest
import torch

from kvlab.memory.cuda.tensor import tensor_at

PAGE = 4096
NONE = {"handles": 0, "mappings": 0, "reservations": 0}


def test_a_tensor_holds_the_addresses_as_long_as_any_view_of_it_lives(vmm, device):
    place, pool = vmm.reservation(4 * PAGE, PAGE), vmm.pool(PAGE, PAGE)
    tensor = place.tensor(torch.bfloat16, (2, PAGE))
    place.map(PAGE, pool, 0, PAGE)
    view = tensor[0, PAGE // 2 :]
    view.fill_(2.0)
    assert view.float().sum().item() == PAGE
    del tensor
    place.close()
    pool.close()
    assert device.live() == {**device.live(), "handles": 0, "mappings": 0, "reservations": 1}
    del view
    gc.collect()
    assert device.live() == {**device.live(), **NONE}
    vmm.close()
    with pytest.raises(ValueError, match="the reservation is closed"):
        place.tensor(torch.float32, (4,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_have_the_type_shape_and_address_asked_for(vmm, driver, dtype):
    place = vmm.reservation(1 << 20, PAGE)
    tensor = place.tensor(dtype, (3, 5, 7))
    assert (tensor.dtype, tensor.shape, tensor.stride()) == (dtype, (3, 5, 7), (35, 7, 1))
    assert (tensor.data_ptr(), tensor.device) == (place.base, driver.device)
    del tensor
    place.close()


@pytest.mark.parametrize(("dtype", "size"), [(torch.int32, 4), (torch.float32, PAGE)])
def test_a_tensor_that_cannot_be_leaves_nothing(vmm, device, dtype, size):
    """One beyond the reservation was made, and reading it would have ended all use of the device."""
    place = vmm.reservation(PAGE, PAGE)
    with pytest.raises(ValueError, match=f"allowed is float64, float32, float16, bfloat16, and {PAGE} bytes at most"):
        place.tensor(dtype, (size,))
    place.close()
    assert device.live()["reservations"] == 0


@pytest.mark.slow
def test_a_tensor_may_be_held_until_the_process_ends():
    code = """
        import ctypes, torch
        from kvlab.memory.cuda.tensor import tensor_at
        memory = (ctypes.c_char * 64)()
        tensor = tensor_at(ctypes.addressof(memory), torch.float32, (16,), torch.device("cpu"), lambda: None)
        torch.kept = [tensor, tensor[3:]]
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_tensors_over_other_memory_tell_when_they_are_gone():
    source, told = torch.arange(6.0), []
    tensor = tensor_at(source.data_ptr(), torch.float32, (2, 3), torch.device("cpu"), lambda: told.append(1))
    assert torch.equal(tensor, source.view(2, 3))
    view = tensor.transpose(0, 1)[1:]
    del tensor
    assert told == []
    del view
    assert told == [1]
