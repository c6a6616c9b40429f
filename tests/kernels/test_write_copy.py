"""Writing and copying slots."""

from __future__ import annotations

import pytest
import torch

from kvlab.kernels.copy import copy
from kvlab.kernels.write import write


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_write_touches_its_slots_alone(dtype):
    k_SHD, v_SHD = torch.full((2, 50, 3, 16), torch.nan, dtype=dtype)
    slot_T = torch.tensor([49, 0, 17, 18])
    k_THD, v_THD = torch.randn(2, 4, 3, 16).to(dtype)
    write(k_SHD, v_SHD, slot_T, k_THD, v_THD)
    for kv_SHD, kv_THD in ((k_SHD, k_THD), (v_SHD, v_THD)):
        assert torch.equal(kv_SHD[slot_T], kv_THD)
        assert int(kv_SHD.isnan().all(-1).all(-1).sum()) == 46


def test_write_takes_views_of_a_projection():
    """Keys and values as a model has them: slices of one packed tensor."""
    packed = torch.randn(5, 3 * 3 * 16)
    k_THD, v_THD = packed[:, 48:96].view(5, 3, 16), packed[:, 96:].view(5, 3, 16)
    k_SHD, v_SHD = torch.zeros(2, 9, 3, 16)
    write(k_SHD, v_SHD, torch.arange(5) + 2, k_THD, v_THD)
    assert torch.equal(k_SHD[2:7], k_THD)
    assert torch.equal(v_SHD[2:7], v_THD)


def test_copy_moves_a_range_and_nothing_else():
    k_SHD, v_SHD = torch.randn(2, 30, 2, 16)
    before = k_SHD.clone(), v_SHD.clone()
    copy(k_SHD, v_SHD, 3, 13, 10)
    for kv_SHD, old_SHD in zip((k_SHD, v_SHD), before, strict=True):
        assert torch.equal(kv_SHD[13:23], old_SHD[3:13])
        assert torch.equal(kv_SHD[:13], old_SHD[:13])
        assert torch.equal(kv_SHD[23:], old_SHD[23:])


@pytest.mark.parametrize(("source", "target"), [(3, 3), (3, 12), (12, 3)])
def test_ranges_that_overlap_are_a_bug(source, target):
    k_SHD, v_SHD = torch.randn(2, 30, 2, 16)
    with pytest.raises(AssertionError, match="overlap"):
        copy(k_SHD, v_SHD, source, target, 10)
