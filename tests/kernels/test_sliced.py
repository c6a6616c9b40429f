"""Keys and values of all layers in one tensor: a layer's slots lie far apart, and every kernel does the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.kernels.attention import attend, kernel_name
from kvlab.kernels.copy import copy
from kvlab.kernels.write import write
from kvlab.memory.view import make_view

LAYERS, SLOTS = 3, 700
SHAPES = [  # dtype, head size, key/value heads, query heads a key/value head
    (torch.float32, 64, 3, 3),
    (torch.float64, 16, 2, 4),
    (torch.bfloat16, 128, 1, 4),
]


@pytest.fixture(params=SHAPES, ids=[str(shape[0])[6:] for shape in SHAPES])
def shape(request):
    return request.param


@pytest.fixture
def layouts(shape):
    """k_SHD, v_SHD of the middle layer, apart and as slices of [S, L, H, D] whose other layers are NaN."""
    dtype, head_dim, heads, _ = shape
    apart, sliced = [], []
    for seed in range(2):
        kv_SHD = torch.randn(SLOTS, heads, head_dim, generator=torch.Generator().manual_seed(seed)).to(dtype)
        kv_SLHD = torch.full((SLOTS, LAYERS, heads, head_dim), torch.nan, dtype=dtype)
        kv_SLHD[:, 1] = kv_SHD
        apart.append(kv_SHD)
        sliced.append(kv_SLHD[:, 1])
    return apart, sliced


@pytest.mark.parametrize("block_size", [None, 16])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("new", [[1, 1, 1], [1, 5, 1], [70, 1, 200]], ids=["decode", "mixed", "prefill"])
def test_attention_is_the_same_to_the_bit(shape, layouts, new, compiled, block_size):
    if compiled and kernel_name().startswith("torch"):
        pytest.skip(f"decode runs in {kernel_name()}")
    dtype, head_dim, heads, groups = shape
    stop = np.array([130, 65, 200])
    first = np.array([0, 256, 400], np.int32)[:, None]
    table = first if block_size is None else first // 16 + np.arange(13, dtype=np.int32)
    view = make_view(table, stop - np.array(new), stop, block_size)
    q_TQD = torch.randn(sum(new), heads * groups, head_dim, generator=torch.Generator().manual_seed(9)).to(dtype)
    apart, sliced = (attend(q_TQD, *kv, view, 0.1, compiled=compiled) for kv in layouts)
    assert not apart.isnan().any()
    assert torch.equal(apart, sliced)


def test_writes_and_copies_touch_their_layer_alone(shape, layouts):
    dtype, head_dim, heads, _ = shape
    slot_T = torch.tensor([SLOTS - 1, 0, 17])
    k_THD, v_THD = torch.randn(2, 3, heads, head_dim).to(dtype)
    for kv in layouts:
        write(*kv, slot_T, k_THD, v_THD)
        copy(*kv, 0, 300, 20)
    for apart, sliced in zip(*layouts, strict=True):
        assert torch.equal(apart, sliced)
        kv_SLHD = sliced._base
        assert kv_SLHD[:, 0].isnan().all()
        assert kv_SLHD[:, 2].isnan().all()
