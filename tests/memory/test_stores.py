"""Stores carry moves out in order, and what they say is backed is what the operating system says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvlab.kernels.pool import put
from kvlab.memory.build import build_store
from kvlab.memory.dense import DenseStore
from kvlab.memory.host_vmm import PAGE_BYTES
from kvlab.memory.virtual import VirtualStore
from kvlab.moves import Copy, Drop, Map, Unmap
from kvlab.strategies.paged import Paged
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Arrival, Memory

LAYERS, HEADS, DIM = 3, 2, 16  # of the stores in conftest.py
SLOTS_PER_PAGE = PAGE_BYTES // (HEADS * DIM * 4)  # float32: 32
GROUP_BYTES = 2 * LAYERS * PAGE_BYTES


def test_a_dense_store_is_backed_whole_from_the_start(dense, fill):
    nbytes = 2 * LAYERS * 100 * HEADS * DIM * 4
    assert dense.committed_bytes() == dense.accounted_bytes() == -(-nbytes // PAGE_BYTES) * PAGE_BYTES
    fill(dense, 0, 100, 1)
    assert dense.committed_bytes() == dense.accounted_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_layers_are_token_major_and_apart(dtype, fill, holds):
    store = DenseStore(LAYERS, 10, HEADS, DIM, dtype)
    for layer in range(LAYERS):
        for kv_SHD in store.layer(layer):
            assert kv_SHD.shape == (10, HEADS, DIM)
            assert kv_SHD.stride() == (HEADS * DIM, DIM, 1)
            assert kv_SHD.dtype == dtype
    fill(store, 0, 10, 8)
    assert holds(store, 0, 10, 8)
    assert store.layer(1)[0] is store.layer(1)[0]
    store.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_head_major_layers_are_whole_tiles(dtype):
    store = DenseStore(LAYERS, 10, HEADS, DIM, dtype, tile=4)
    for layer in range(LAYERS):
        for kv_UHWD in store.layer(layer):
            assert kv_UHWD.shape == (3, HEADS, 4, DIM)
            assert kv_UHWD.is_contiguous()
    store.close()


@pytest.mark.parametrize("sliced", [False, True])
def test_a_head_major_layer_over_virtual_memory(sliced):
    """Sliced, a tile of all layers lies together: it has memory with them."""
    store = VirtualStore(LAYERS, 90, HEADS, DIM, torch.float32, PAGE_BYTES, 4, sliced, tile=16)
    kv_UHWD = store.layer(1)[0]
    assert kv_UHWD.shape == (6, HEADS, 16, DIM)
    assert kv_UHWD.stride() == ((LAYERS if sliced else 1) * 16 * HEADS * DIM, 16 * DIM, DIM, 1)
    store.apply([Map(0, 0)])
    kv_UHWD[0] = 3.0
    store.close()


def test_a_copy_needs_the_whole_tiles_of_its_slots():
    """Slot 30 is the last but one of page 0, but its last head lies where page 1 would be."""
    store = VirtualStore(1, 64, 2, 16, torch.float32, PAGE_BYTES, 4, tile=64)
    store.apply([Map(0, 0)])
    with pytest.raises(AssertionError, match=r"page groups \[1\] are not mapped"):
        store.apply([Copy(0, 30, 1)])
    store.apply([Map(1, 1), Copy(0, 30, 1)])
    store.close()


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("tile", [1, 4, 16, 128])
def test_a_strategy_maps_whole_tiles(tile, sliced):
    """Every slot up to a sequence's room can be written in a layout in which a tile's heads lie among each other.

    Without whole tiles in page_groups, the last heads of a row's last tile had no memory.
    """
    token_bytes, heads = 2 * LAYERS * 3 * DIM * 4, 3  # tokens straddle pages
    group_bytes = 2 * PAGE_BYTES if sliced else GROUP_BYTES
    strategy = VAttention(replace(memory(token_bytes, group_bytes), sliced=sliced, tile=tile))
    store = build_store(strategy, LAYERS, heads, DIM, torch.float32)
    assert strategy.row_slots % tile == 0
    for seq, length in enumerate((1, 33, 50)):
        grant = strategy.admit(Arrival(seq, length, length, 200, 200), length)
        store.apply(strategy.drain())
        slot_N = torch.from_numpy(strategy.slots(seq, 0, 0, grant.room))
        for layer in range(LAYERS):
            for pool in store.layer(layer):
                put(pool, slot_N, torch.full((len(slot_N), heads, DIM), float(seq)))
    assert store.committed_bytes() == store.accounted_bytes() == strategy.usage().backed
    store.close()


def test_copies_reach_every_layer_in_order(dense, fill, holds):
    fill(dense, 0, 10, 1)
    fill(dense, 10, 20, 2)
    dense.apply([Copy(0, 50, 10), Copy(10, 0, 10), Copy(50, 60, 5)])
    assert holds(dense, 50, 60, 1)
    assert holds(dense, 0, 10, 2)
    assert holds(dense, 60, 65, 1)
    assert holds(dense, 10, 20, 2)


@pytest.mark.parametrize("move", [Map(0, 0), Unmap(0), Drop(0)])
def test_a_dense_store_has_nothing_to_map(dense, move):
    with pytest.raises(AssertionError, match="nothing to map"):
        dense.apply([move])


@pytest.mark.parametrize("kind", ["dense", "virtual"])
def test_a_move_for_another_pool_is_a_bug(kind, request):
    with pytest.raises(AssertionError, match="one pool"):
        request.getfixturevalue(kind).apply([Copy(0, 50, 1, pool=1)])


def test_copies_that_overlap_are_a_bug(dense):
    with pytest.raises(AssertionError, match="overlap"):
        dense.apply([Copy(0, 5, 6)])


@pytest.mark.parametrize("kind", ["dense", "virtual"])
def test_closing_gives_everything_back_once(kind, request):
    store = request.getfixturevalue(kind)
    store.close()
    store.close()
    assert store.committed_bytes() == 0


def memory(token_bytes, page_group_bytes):
    return Memory(64 * 1024 * 16, token_bytes, 200, 4, 200, (None,) * LAYERS, page_group_bytes)


def test_build_store_follows_the_strategy():
    token_bytes = 2 * LAYERS * HEADS * DIM * 4
    strategy = Paged(memory(token_bytes, GROUP_BYTES))
    store = build_store(strategy, LAYERS, HEADS, DIM, torch.float32)
    assert isinstance(store, DenseStore)
    assert len(store.layer(0)[0]) == strategy.pools[0].slots
    store.close()
    with pytest.raises(AssertionError, match="a token has"):
        build_store(strategy, LAYERS, HEADS, 2 * DIM, torch.float32)


@pytest.mark.parametrize("sliced", [False, True])
def test_a_vattention_store_backs_what_the_strategy_says(sliced):
    token_bytes = 2 * LAYERS * HEADS * DIM * 4
    group_bytes = 2 * PAGE_BYTES if sliced else GROUP_BYTES
    strategy = VAttention(replace(memory(token_bytes, group_bytes), sliced=sliced))
    store = build_store(strategy, LAYERS, HEADS, DIM, torch.float32)
    rng = np.random.default_rng(0)
    for seq in range(40):
        assert strategy.admit(Arrival(seq, 33, 33, 200, 200), 33)
        strategy.extend(seq, 33, int(rng.integers(34, 120)))
        strategy.fork(seq, Arrival(100 + seq, 33, 33, 200, 200))
        store.apply(strategy.drain())
        assert store.committed_bytes() == store.accounted_bytes() == strategy.usage().backed
        strategy.release(seq)
        if seq and 99 + seq in strategy.table.row:
            strategy.release(99 + seq)
    store.close()
