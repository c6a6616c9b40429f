"""One launch in many layers: what they have in common is put together once, and each gets what it would get alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.engine.executor import Attention
from kvlab.engine.kernels import Kvlab
from kvlab.kernels import attention
from kvlab.kernels.attention import attend
from kvlab.kernels.pool import pool_shape, put, take
from kvlab.kernels.write import Writing, write
from kvlab.memory.dense import DenseStore
from kvlab.memory.view import make_view

LAYERS, HEADS, GROUPS, DIM, BLOCK = 4, 3, 3, 64, 16
PIECES = {"decode": [(9, 10), (40, 41)], "mixed": [(0, 30), (16, 17), (2, 6)], "prompts": [(0, 9), (5, 40)]}


def view_of(pieces):
    width = 3
    table_BP = np.arange(len(pieces) * width, dtype=np.int32).reshape(-1, width)[::-1]
    start_B, stop_B = np.array(pieces, np.int64).T
    return make_view(table_BP, start_B, stop_B, BLOCK)


def pools(tile=1, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = pool_shape(3 * 3 * BLOCK, HEADS, DIM, tile)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]


def queries(view, dtype=torch.float32):
    return torch.randn(len(view.slot_T), HEADS * GROUPS, DIM, generator=torch.Generator().manual_seed(9)).to(dtype)


@pytest.mark.parametrize("pieces", PIECES)
def test_every_layer_of_every_launch_is_as_alone(pieces):
    kernels = Kvlab()
    for view in (view_of(PIECES[pieces]), view_of(PIECES["decode"])):
        for layer in range(LAYERS):
            keys, values = pools(seed=layer)
            q_TQD = queries(view)
            assert torch.equal(kernels.attend(q_TQD, keys, values, view, 0.1), attend(q_TQD, keys, values, view, 0.1))


def test_one_view_over_pools_of_other_kinds(threads):
    """What was put together for one layout, element type, scale or number of threads is no use to the next."""
    kernels, view = Kvlab(), view_of(PIECES["mixed"])
    for tile, dtype, scale, count in ((1, torch.float32, 0.1, 1), (16, torch.float32, 0.1, 1),
                                      (16, torch.bfloat16, 0.1, 1), (16, torch.bfloat16, 0.2, 2)):  # fmt: skip
        threads(count)
        keys, values = pools(tile, dtype)
        q_TQD = queries(view, dtype)
        assert torch.equal(kernels.attend(q_TQD, keys, values, view, scale), attend(q_TQD, keys, values, view, scale))


def test_layers_of_a_launch_ask_for_its_queries_once(monkeypatch):
    """They were found anew in each of a model's layers, which took as long as everything else around the kernel."""
    asked, real = [], attention.queries_of
    monkeypatch.setattr(attention, "queries_of", lambda *arguments: asked.append(1) or real(*arguments))
    store = DenseStore(LAYERS, 9 * BLOCK, HEADS, DIM, torch.float32)
    view, kernels = view_of(PIECES["decode"]), Kvlab()
    for _ in range(2):
        launch = Attention(store, kernels, view, 0.1)
        for layer in range(LAYERS):
            launch(layer, queries(view), *torch.randn(2, len(view.slot_T), HEADS, DIM))
    store.close()
    assert len(asked) == 1


@pytest.mark.parametrize("tile", [1, 16])
@pytest.mark.parametrize("packed", [True, False])
def test_new_tokens_of_several_layers(tile, packed):
    """Slices of a wider row, as a model hands them out; or heads that lie apart, which are packed in every layer."""
    slot_T = torch.tensor([17, 3, 30, 31])
    apart = torch.randn(LAYERS, 4, 2, HEADS, DIM) if packed else torch.randn(LAYERS, 4, DIM, 2, HEADS).movedim(2, -1)
    writing = None
    for layer in range(LAYERS):
        k_THD, v_THD = apart[layer][:, 0], apart[layer][:, 1]
        (keys, values), expected = pools(tile, seed=layer), pools(tile, seed=layer)
        writing = writing or Writing(keys, slot_T, k_THD, v_THD)
        writing(keys, values, k_THD, v_THD)
        for pool, x_THD in zip(expected, (k_THD, v_THD), strict=True):
            put(pool, slot_T, x_THD)
        assert torch.equal(keys, expected[0])
        assert torch.equal(values, expected[1])


def test_a_layer_that_is_laid_out_otherwise_is_no_part_of_the_launch():
    slot_T, kv = torch.tensor([0, 1]), torch.randn(2, 2, HEADS, DIM)
    writing = Writing(pools()[0], slot_T, *kv)
    with pytest.raises(AssertionError, match="layers are laid out alike"):
        writing(*pools(16), *kv)
    with pytest.raises(AssertionError, match="layers are laid out alike"):
        writing(*pools(), *torch.randn(2, 2, 2 * HEADS, DIM)[:, :, ::2])


def test_no_new_tokens_at_all():
    keys, values = pools()
    before = keys.clone()
    write(keys, values, torch.empty(0, dtype=torch.int64), *torch.empty(2, 0, HEADS, DIM))
    assert torch.equal(take(keys, torch.arange(10)), take(before, torch.arange(10)))
