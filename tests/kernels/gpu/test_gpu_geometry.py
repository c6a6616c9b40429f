"""What a launch looks like on the device: the same slots as on the host, in two parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.kernels.gpu.geometry import ALIGNED, Blocks, make_view, over_table
from kvlab.memory import view as host

LENGTHS, NEW = [5, 63, 100, 1, 16, 17, 40], [5, 1, 20, 1, 2, 1, 0]
DECODE, PREFILL = [1, 3, 5], [0, 2, 4]  # the last one sits out


def tensors(view):
    """All of a view's tensors."""
    parts = [part.sequences for part in (view.decode, view.prefill) if part is not None]
    return [view.slot_T, *(x for part in parts for x in part if isinstance(x, torch.Tensor))]


@pytest.mark.parametrize("geometry", ["rows", "blocks"])
def test_one_new_token_decodes_and_more_prefill(make_case, geometry):
    view = getattr(make_case(LENGTHS, NEW), geometry)
    for part, chosen in ((view.decode, DECODE), (view.prefill, PREFILL)):
        first_B = np.cumsum(NEW) - np.array(NEW)
        assert part.sequences.length_B.tolist() == [LENGTHS[i] for i in chosen]
        assert part.sequences.new_B.tolist() == [NEW[i] for i in chosen]
        assert part.sequences.query_B.tolist() == first_B[chosen].tolist()
        assert (part.longest, part.most) == (max(LENGTHS[i] for i in chosen), max(NEW[i] for i in chosen))


def test_places_are_those_of_the_host(make_case):
    case = make_case(LENGTHS, NEW, block_size=4)
    assert torch.equal(case.rows.slot_T.cpu(), case.host_rows.slot_T)
    assert torch.equal(case.blocks.slot_T.cpu(), case.host_blocks.slot_T)
    for rows, blocks, chosen in (
        (case.rows.decode.sequences, case.blocks.decode.sequences, DECODE),
        (case.rows.prefill.sequences, case.blocks.prefill.sequences, PREFILL),
    ):
        assert rows.start_B.tolist() == case.row_B1[chosen, 0].tolist()
        for row, sequence in zip(blocks.row_B.tolist(), chosen, strict=True):
            used = -(-LENGTHS[sequence] // 4)
            assert blocks.table_RP[row, :used].tolist() == case.table_BP[sequence, :used].tolist()


def test_a_table_that_is_there_already_is_used_as_it_is(make_case, device):
    case = make_case(LENGTHS, NEW, block_size=4)
    row_B = np.array([9, 2, 7, 0, 4, 5, 1])
    table_RP = torch.full((10, 40), 2**31 - 1, dtype=torch.int32)
    table_RP[row_B, : case.table_BP.shape[1]] = torch.from_numpy(case.table_BP)
    table_RP = table_RP.to(device)
    view = over_table(table_RP, row_B, case.table_BP, case.start_B, case.stop_B, 4)
    assert torch.equal(view.slot_T, case.blocks.slot_T)
    for part, chosen in ((view.decode, DECODE), (view.prefill, PREFILL)):
        assert part.sequences.table_RP is table_RP
        assert part.sequences.row_B.tolist() == row_B[chosen].tolist()


@pytest.mark.parametrize("geometry", ["rows", "blocks"])
def test_every_tensor_is_aligned_and_typed(make_case, geometry):
    """A kernel compiled for pointers that allow wide loads must not be handed others."""
    view = getattr(make_case(LENGTHS, NEW), geometry)
    wide = {view.slot_T.data_ptr()}
    if geometry == "rows":
        wide |= {part.sequences.start_B.data_ptr() for part in (view.decode, view.prefill)}
    for x in tensors(view):
        assert x.data_ptr() % ALIGNED == 0
        assert x.dtype == (torch.int64 if x.data_ptr() in wide else torch.int32)


def test_a_step_that_only_decodes_has_one_part(make_case):
    view = make_case([5, 6, 7]).blocks
    assert view.prefill is None
    assert isinstance(view.decode.sequences, Blocks)
    assert len(view.slot_T) == 3


@pytest.mark.parametrize("block_size", [None, 4])
def test_an_empty_launch(device, block_size):
    nothing = np.zeros(0, np.int64)
    view = make_view(np.zeros((0, 2), np.int32), nothing, nothing, block_size, device)
    assert (view.decode, view.prefill, len(view.slot_T)) == (None, None, 0)


def test_entries_that_no_token_uses_are_not_followed():
    """They may be anything: the slots of new tokens come from the entries in use alone."""
    table_BP = np.array([[3, -7, 2**31 - 1]], np.int32)
    slot_T = host.new_slots(table_BP, np.array([1]), np.array([4]), 4)
    assert slot_T.tolist() == [13, 14, 15]
