"""No kernel reads past a sequence's end: behind the last token lies memory that kills its reader."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import torch

from kvlab.kernels.attention import attend
from kvlab.kernels.pool import put
from kvlab.kernels.reference import attend as truth
from kvlab.kernels.write import write
from kvlab.memory.host_vmm import PAGE_BYTES
from kvlab.memory.view import make_view
from kvlab.memory.virtual import VirtualStore
from kvlab.moves import Map

HEADS, DIM, GROUPS = 2, 64, 3
PER_PAGE = 8  # slots of float32
ROW = 16 * PER_PAGE  # slots


@pytest.fixture(params=[1, 8], ids=["token_major", "head_major"])
def store(request):
    store = VirtualStore(1, 4 * ROW, HEADS, DIM, torch.float32, PAGE_BYTES, 40, tile=request.param)
    yield store
    store.close()


def mapped(store, lengths):
    """Map just the pages of rows of these lengths, whole pages, and fill them."""
    physical = 0
    for row, length in enumerate(lengths):
        for page in range(length // PER_PAGE):
            store.apply([Map(row * ROW // PER_PAGE + page, physical)])
            physical += 1
        for pool in store.layer(0):
            put(pool, torch.arange(row * ROW, row * ROW + length), torch.randn(length, HEADS, DIM))


def views(lengths, new):
    """The same slots as rows, and as blocks of one page with entries behind the last that point anywhere."""
    stop = np.array(lengths)
    start = stop - np.array(new)
    first = np.arange(len(lengths), dtype=np.int32) * ROW
    table = first[:, None] // PER_PAGE + np.arange(20, dtype=np.int32)
    for row, length in enumerate(lengths):
        table[row, length // PER_PAGE :] = 2**31 - 1
    return [make_view(first[:, None], start, stop, None), make_view(table, start, stop, PER_PAGE)]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("geometry", [0, 1])
@pytest.mark.parametrize("new", [[1, 1, 1], [8, 1, 24], [8, 60, 30]], ids=["decode", "mixed", "prefill"])
def test_rows_that_end_where_memory_ends(store, ending, compiled, geometry, new):
    lengths = [8, 72, 64]
    mapped(store, lengths)
    view = views(lengths, new)[geometry]
    q_TQD = torch.randn(sum(new), HEADS * GROUPS, DIM)

    def run():
        k_SHD, v_SHD = store.layer(0)
        write(k_SHD, v_SHD, view.slot_T, torch.randn(sum(new), HEADS, DIM), torch.randn(sum(new), HEADS, DIM))
        o_TQD = attend(q_TQD, k_SHD, v_SHD, view, 0.125, compiled=compiled)
        torch.testing.assert_close(o_TQD.double(), truth(q_TQD, k_SHD, v_SHD, view, 0.125), rtol=1e-5, atol=1e-6)

    assert ending(run) == 0
    run()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("geometry", [0, 1])
@pytest.mark.parametrize("new", [1, 2, 20])
def test_one_token_more_would_die(store, ending, compiled, geometry, new):
    """The control: were the guard not there, the tests above would show nothing."""
    mapped(store, [64])
    view = views([64], [new])[geometry]
    if geometry == 1:
        view = view._replace(table_BP=torch.arange(9, dtype=torch.int32)[None])
    longer = view._replace(length_B=view.length_B + 1)
    q_TQD = torch.randn(new, HEADS * GROUPS, DIM)
    assert ending(lambda: attend(q_TQD, *store.layer(0), longer, 0.125, compiled=compiled)) == signal.SIGSEGV
