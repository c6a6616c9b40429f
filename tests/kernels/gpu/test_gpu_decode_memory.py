"""Decode reads nothing where there is no memory: what does, kills its process, so a fork of this one does it."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import torch

from kvlab.kernels.gpu.config import Config
from kvlab.kernels.gpu.decode import decode
from kvlab.kernels.gpu.geometry import make_view
from kvlab.kernels.reference import attend as truth
from kvlab.memory import view as host
from kvlab.memory.host_vmm import PAGE_BYTES, PhysicalPool, Reservation, round_up

SMALL = Config(tile=32, warps=4, stages=2)


def run(q_TQD, kv, part, scale, splits=1):
    """o_TQD of the part's sequences."""
    o_TQD = torch.full_like(q_TQD, torch.nan)
    decode(q_TQD, *kv, o_TQD, part.sequences, part.longest, scale, config=SMALL, splits=splits)
    return o_TQD


@pytest.fixture
def on_host(device):
    if device != "cpu":
        pytest.skip("host memory under an interpreted kernel; on a GPU the virtual store's own tests do this")


@pytest.fixture
def reserved():
    """Keys and values over reserved addresses, of which only some slots, whole pages, have memory."""
    opened = []

    def make(slots, mapped, heads, head_dim, dtype):
        slot_bytes = heads * head_dim * dtype.itemsize
        backed = [(first * slot_bytes, (stop - first) * slot_bytes) for first, stop in mapped]
        pool = PhysicalPool(2 * sum(nbytes for _, nbytes in backed))
        opened.append(pool)
        offset, kv = 0, []
        for _ in range(2):
            place = Reservation(round_up(slots * slot_bytes))
            opened.append(place)
            for first, nbytes in backed:
                place.map(first, pool, offset, nbytes)
                offset += nbytes
            kv.append(place.tensor(dtype, (slots, heads, head_dim)))
            for first, stop in mapped:
                kv[-1][first:stop] = torch.randn(stop - first, heads, head_dim).to(dtype)
        return kv

    yield make
    for thing in reversed(opened):
        thing.close()


def both_geometries(first_B, lengths, block_size):
    """The same rows of slots, as rows and as blocks with wrong entries behind the last."""
    stop_B = np.array(lengths)
    table_BP = first_B[:, None] // block_size + np.arange(stop_B.max() // block_size + 2)
    for row, length in enumerate(lengths):
        table_BP[row, -(-length // block_size) :] = 2**31 - 1
    for table, size in ((first_B[:, None], None), (table_BP, block_size)):
        table = table.astype(np.int32)
        yield (make_view(table, stop_B - 1, stop_B, size, "cpu"), host.make_view(table, stop_B - 1, stop_B, size))


@pytest.mark.parametrize("splits", [1, 2])
def test_rows_that_end_where_memory_ends(on_host, ending, reserved, assert_close, splits):
    page = PAGE_BYTES // (64 * 4)  # slots
    lengths, row = [page, 5 * page, 4 * page], 8 * page
    first_B = np.arange(3) * row
    mapped = [(first, first + length) for first, length in zip(first_B.tolist(), lengths, strict=True)]
    kv = reserved(4 * row, mapped, 1, 64, torch.float32)
    q_TQD = torch.randn(3, 2, 64)
    for view, same in both_geometries(first_B, lengths, page):
        assert ending(lambda part=view.decode: run(q_TQD, kv, part, 0.125, splits=splits)) == 0
        assert_close(run(q_TQD, kv, view.decode, 0.125, splits=splits), truth(q_TQD, *kv, same, 0.125), "guarded")


@pytest.mark.parametrize("geometry", [0, 1])
def test_one_token_more_would_die(on_host, ending, reserved, geometry):
    """The control: were there no guard, the test above would show nothing."""
    page = PAGE_BYTES // (2 * 64 * 4)
    kv = reserved(32 * page, [(0, 4 * page)], 2, 64, torch.float32)
    view, _ = list(both_geometries(np.zeros(1, np.int64), [4 * page + 1], page))[geometry]
    assert ending(lambda: run(torch.randn(1, 4, 64), kv, view.decode, 0.125)) == -signal.SIGSEGV


def test_no_entry_is_read_beyond_the_last_in_use(on_host, ending, reserved, make_case, assert_close):
    """The table ends where its memory does, and the sequence's last tile reaches further."""
    case = make_case([40], block_size=1)
    entries = PAGE_BYTES // 4
    memory_E11, _ = reserved(2 * entries, [(0, entries)], 1, 1, torch.int32)
    table_RP = memory_E11.view(-1)[entries - 40 : entries].view(1, 40)
    table_RP.copy_(torch.from_numpy(case.table_BP[:, :40]))
    part = case.blocks.decode
    part = part._replace(sequences=part.sequences._replace(table_RP=table_RP))
    assert ending(lambda: run(case.q_TQD, case.paged, part, case.scale)) == 0
    assert_close(run(case.q_TQD, case.paged, part, case.scale), case.truth(), "the table's end")


def test_slots_past_the_32_bits_of_an_element(on_host, ending, reserved, assert_close):
    """64-bit addressing: in 32 bits these offsets would wrap round to where there is no memory."""
    page, block_size = PAGE_BYTES // (64 * 2), 16
    far = (2**31 // 64 + 10**6) // page * page  # slots; elements and bytes are past 2**31
    lengths, first_B = [page, page - 3], np.array([far, 2 * far])
    kv = reserved(2 * far + page, [(first, first + page) for first in first_B.tolist()], 1, 64, torch.float16)
    q_TQD = torch.randn(2, 4, 64).half()
    for view, same in both_geometries(first_B, lengths, block_size):
        assert ending(lambda part=view.decode: run(q_TQD, kv, part, 0.125)) == 0
        for splits in (1, 2):
            o_TQD = run(q_TQD, kv, view.decode, 0.125, splits=splits)
            assert_close(o_TQD, truth(q_TQD, *kv, same, 0.125), "far slots")
