"""Writing and copying slots, in every layout, in C and in torch."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from kvlab.kernels import copy as copy_module
from kvlab.kernels import write as write_module
from kvlab.kernels.copy import Stretches, copy, copy_all, transfer
from kvlab.kernels.pool import pool_shape, put, slots_in, take
from kvlab.kernels.write import write
from kvlab.moves import Copy

LAYOUTS = ["token_major", "sliced", "tiles of 1 head", "tiles of 4", "tiles of 16", "sliced tiles"]
HEADS, DIM = 3, 16


@pytest.fixture(params=[True, False], ids=["compiled", "torch"])
def compiled(request):
    if request.param and copy_module.kernel() is None:
        pytest.skip("no C compiler")
    return request.param


def pool_like(layout, slots, dtype=torch.float32, fill=torch.nan):
    """A pool of so many slots at least; sliced ones are the middle of three layers side by side."""
    tile = {"tiles of 4": 4, "tiles of 16": 16, "sliced tiles": 4}.get(layout, 1)
    first, *inner = pool_shape(slots, 1 if layout == "tiles of 1 head" else HEADS, DIM, tile)
    whole = torch.full((first, 3, *inner), fill, dtype=dtype)
    return whole[:, 1] if layout.startswith("sliced") else whole[:, 1].clone()


def numbered(layout, slots, dtype=torch.float32):
    """Every element another number."""
    pool = pool_like(layout, slots, dtype)
    heads = pool.shape[1]
    count = slots_in(pool)
    put(pool, torch.arange(count), torch.arange(count * heads * DIM).view(count, heads, DIM).to(dtype))
    return pool


def all_of(pool):
    """x_SHD, a copy."""
    return take(pool, torch.arange(slots_in(pool))).clone()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_write_touches_its_slots_alone(dtype, layout, compiled):
    keys, values = pool_like(layout, 50, dtype), pool_like(layout, 50, dtype)
    slot_T = torch.tensor([49, 0, 17, 18])
    k_THD, v_THD = torch.randn(2, 4, keys.shape[1], DIM).to(dtype)
    write(keys, values, slot_T, k_THD, v_THD, compiled)
    for pool, x_THD in ((keys, k_THD), (values, v_THD)):
        assert torch.equal(take(pool, slot_T), x_THD)
        assert int(all_of(pool).isnan().all(-1).all(-1).sum()) == slots_in(pool) - 4
        if pool._base is not None:
            assert pool._base[:, ::2].isnan().all(), "another layer was written"


@pytest.mark.parametrize("layout", LAYOUTS[:1] + LAYOUTS[3:4])
def test_write_takes_views_of_a_projection(layout, compiled):
    """Keys and values as a model has them: slices of one packed tensor; or with heads apart."""
    packed = torch.randn(5, 3 * 3 * 16)
    k_THD, v_THD = packed[:, 48:96].view(5, 3, 16), packed[:, 96:].view(5, 3, 16)
    keys, values = pool_like(layout, 9), pool_like(layout, 9)
    write(keys, values, torch.arange(5) + 2, k_THD, v_THD, compiled)
    assert torch.equal(all_of(keys)[2:7], k_THD)
    assert torch.equal(all_of(values)[2:7], v_THD)
    k_HTD = torch.randn(3, 5, 16)
    write(keys, values, torch.arange(5), k_HTD.transpose(0, 1), v_THD, compiled)
    assert torch.equal(all_of(keys)[:5], k_HTD.transpose(0, 1))


def test_many_tokens_on_two_threads_are_written_like_few(threads):
    threads(2)
    keys, values = pool_like("tiles of 16", 3000), pool_like("tiles of 16", 3000)
    k_THD, v_THD = torch.randn(2, 2500, HEADS, DIM)
    slot_T = torch.randperm(3000)[:2500]
    write(keys, values, slot_T, k_THD, v_THD)
    assert torch.equal(take(keys, slot_T), k_THD)
    assert torch.equal(take(values, slot_T), v_THD)


def test_nothing_is_written_by_an_empty_launch(compiled):
    keys, values = pool_like("tiles of 4", 8), pool_like("tiles of 4", 8)
    write(keys, values, torch.zeros(0, dtype=torch.int64), *torch.zeros(2, 0, HEADS, DIM), compiled)
    assert all_of(keys).isnan().all()
    assert all_of(values).isnan().all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copy_moves_a_range_and_nothing_else(layout):
    keys, values = numbered(layout, 30), numbered(layout, 30)
    before = all_of(keys)
    copy(keys, values, 3, 13, 10)
    for pool in (keys, values):
        after = all_of(pool)
        assert torch.equal(after[13:23], before[3:13])
        assert torch.equal(after[:13], before[:13])
        assert torch.equal(after[23:], before[23:])
        if pool._base is not None:
            assert pool._base[:, ::2].isnan().all(), "another layer was written"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_copies_of_all_layers_in_order(layout, dtype, compiled):
    """Against the plainest way to say it; each may read what one before it wrote."""
    rng, layers = np.random.default_rng(3), [(numbered(layout, 80, dtype), numbered(layout, 80, dtype)) for _ in "123"]
    moves, expected = [], all_of(layers[0][0])
    while len(moves) < 40:
        source, target, tokens = (int(n) for n in (*rng.integers(0, 60, 2), rng.integers(0, 20)))
        if abs(source - target) >= tokens:
            moves.append(Copy(source, target, tokens))
            expected[target : target + tokens] = expected[source : source + tokens].clone()
    copy_all(layers, moves, compiled)
    for keys, values in layers:
        assert torch.equal(all_of(keys), expected)
        assert torch.equal(all_of(values), expected)


@pytest.mark.parametrize(
    ("one", "other"), [pair for pair in product(LAYOUTS, LAYOUTS) if "tiles of 1 head" not in pair]
)
def test_stretches_go_from_one_layout_to_another(one, other, compiled):
    source, target = numbered(one, 40), pool_like(other, 50)
    stretches = Stretches(*np.array([[5, 0], [17, 1], [21, 3]]))
    transfer([source], [target], stretches, compiled)
    assert torch.equal(all_of(target)[17:38], all_of(source)[5:26])
    assert torch.equal(all_of(target)[1:4], all_of(source)[:3])
    assert all_of(target)[[0, *range(4, 17), *range(38, 50)]].isnan().all()


def test_no_copies_are_none(compiled):
    keys, values = numbered("tiles of 4", 8), numbered("tiles of 4", 8)
    before = all_of(keys)
    copy_all([(keys, values)], [], compiled)
    copy_all([(keys, values)], [Copy(0, 4, 0)], compiled)
    assert torch.equal(all_of(keys), before)


@pytest.mark.parametrize(("source", "target"), [(3, 3), (3, 12), (12, 3)])
def test_ranges_that_overlap_are_a_bug(source, target):
    keys, values = torch.randn(2, 30, 2, 16)
    with pytest.raises(AssertionError, match="overlap"):
        copy(keys, values, source, target, 10)


def test_without_a_compiler_torch_does_the_same(monkeypatch):
    for module in (copy_module, write_module):
        monkeypatch.setattr(module, "kernel", lambda: None)
    keys, values = numbered("tiles of 4", 30), numbered("tiles of 4", 30)
    before = all_of(keys)
    copy(keys, values, 0, 20, 7)
    write(keys, values, torch.tensor([9]), *torch.zeros(2, 1, HEADS, DIM))
    assert torch.equal(all_of(keys)[20:27], before[:7])
    assert not all_of(values)[9].any()
