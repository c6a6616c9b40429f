"""Decode never reads past a pool that ends where memory ends: whatever the head size, element type and layout."""

from __future__ import annotations

import ctypes
import mmap
import signal

import numpy as np
import pytest
import torch

from kvlab.kernels import decode
from kvlab.kernels.reference import attend as truth
from kvlab.memory.view import make_view

HEADS, GROUPS, TILE, PAGE = 2, 3, 16, 4096
SHAPES = [(torch.float32, 64), (torch.bfloat16, 64)]
OTHERS = [(torch.float32, 20), (torch.float64, 6), (torch.bfloat16, 80), (torch.float32, 96), (torch.bfloat16, 128)]
ALL = [*SHAPES, *(pytest.param(*shape, marks=pytest.mark.slow) for shape in OTHERS)]


def guarded(size, dtype):
    """Random numbers whose last byte is the last before a page that nobody may read."""
    nbytes = torch.Size(size).numel() * dtype.itemsize
    pages = -(-nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, pages + PAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(whole.data_ptr() + pages), PAGE, 0) == 0
    return whole[pages - nbytes : pages].view(dtype).view(size).normal_()


def pools(dtype, head_dim, length, tile):
    size = (length, HEADS, head_dim) if tile == 1 else (length // tile, HEADS, tile, head_dim)
    return [guarded(size, dtype) for _ in "kv"]


def last_row(length, block_size):
    """One sequence over the whole pool, as a row or as its blocks."""
    table = np.arange(-(-length // (block_size or length)), dtype=np.int32)[None]
    return make_view(table, np.array([length - 1]), np.array([length]), block_size)


def run(q_TQD, k_pool, v_pool, view):
    function, name = decode.kernel(q_TQD.dtype, q_TQD.shape[2], GROUPS)
    if function is None:
        pytest.skip(name)
    o_TQD = torch.empty_like(q_TQD)
    decode.Decoding(function, k_pool, view, decode.queries_of(view, 1), 0.1)(q_TQD, k_pool, v_pool, o_TQD)
    return o_TQD


@pytest.mark.parametrize("block_size", [None, 16])
@pytest.mark.parametrize(("length", "tile"), [(1, 1), (17, 1), (300, 1), (48, TILE)])
@pytest.mark.parametrize(("dtype", "head_dim"), ALL)
def test_the_last_row_ends_where_memory_ends(ending, dtype, head_dim, length, tile, block_size):
    q_TQD = torch.randn(1, HEADS * GROUPS, head_dim).to(dtype)
    k_pool, v_pool = pools(dtype, head_dim, length, tile)
    view = last_row(length, block_size)
    assert ending(lambda: run(q_TQD, k_pool, v_pool, view)) == 0
    expected = truth(q_TQD, k_pool, v_pool, view, 0.1)
    torch.testing.assert_close(run(q_TQD, k_pool, v_pool, view).double(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("dtype", "head_dim"), ALL)
def test_a_row_more_would_die(ending, dtype, head_dim):
    """The control."""
    q_TQD = torch.randn(1, HEADS * GROUPS, head_dim).to(dtype)
    k_pool, v_pool = pools(dtype, head_dim, 48, 1)
    assert ending(lambda: run(q_TQD, k_pool, v_pool, last_row(49, None))) == signal.SIGSEGV
