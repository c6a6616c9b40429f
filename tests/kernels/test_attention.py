"""Attention kernels against the reference, over both geometries, with poison wherever nobody owns a slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.kernels.attention import attend, kernel_name
from kvlab.memory.view import make_view

# (dtype, head size, key/value heads, query heads a key/value head)
SHAPES = [
    (torch.float32, 64, 3, 3),
    (torch.float32, 16, 2, 1),
    (torch.float32, 128, 1, 8),
    (torch.float32, 20, 2, 4),
    (torch.float32, 8, 1, 3),
    (torch.float64, 16, 2, 4),
    (torch.float64, 64, 1, 1),
    (torch.bfloat16, 64, 3, 3),
    (torch.bfloat16, 128, 2, 4),
    (torch.bfloat16, 16, 1, 8),
]
NAMES = [f"{str(dtype)[6:]}-{dim}-{heads}x{groups}" for dtype, dim, heads, groups in SHAPES]


@pytest.fixture
def over(compiled):
    """over(case, block_size): what comes out; None is rows."""
    return lambda case, block_size: attend(case.q_TQD, *case.placed(block_size), case.scale, compiled=compiled)


def odd_lengths(block_size):
    return sorted({1, max(1, block_size - 1), block_size, block_size + 1, 63, 64, 65, 100, 128, 200})


@pytest.fixture(params=[True, False], ids=["compiled", "torch"])
def compiled(request):
    if request.param and kernel_name().startswith("torch"):
        pytest.skip(f"decode runs in {kernel_name()}")
    return request.param


@pytest.mark.parametrize("block_size", [1, 3, 16, 128])
@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_decode(shape, block_size, case_of, over):
    case = case_of(shape, [(length, 1) for length in odd_lengths(block_size)])
    rows, blocks = over(case, None), over(case, block_size)
    assert rows.dtype == shape[0]
    assert torch.equal(rows, blocks), "the geometries differ"
    case.check(rows)


@pytest.mark.parametrize("block_size", [1, 3, 16, 128])
@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_pieces_of_any_length(shape, block_size, case_of, over):
    """Whole prompts, chunks behind a prefix and single tokens in one launch; one sequence sits out."""
    case = case_of(shape, [(5, 5), (63, 20), (100, 1), (1, 1), (130, 130), (17, 2), (40, 0)])
    rows, blocks = over(case, None), over(case, block_size)
    assert torch.equal(rows, blocks), "the geometries differ"
    case.check(rows)


def test_a_long_chunk_behind_a_prefix_is_split(case_of):
    case = case_of((torch.float32, 16, 1, 2), [(700, 600), (650, 513)])
    rows, blocks = (attend(case.q_TQD, *case.placed(block_size), case.scale) for block_size in (None, 16))
    assert torch.equal(rows, blocks)
    case.check(rows)


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_a_sequence_does_not_notice_who_shares_its_launch(shape, compiled, case_of):
    case = case_of(shape, [(5, 5), (63, 20), (100, 1), (1, 1), (130, 1), (17, 2)])
    keys, values, view = case.placed(16)
    together = attend(case.q_TQD, keys, values, view, case.scale, compiled=compiled)
    queries, outputs = case.q_TQD.split(case.new.tolist()), together.split(case.new.tolist())
    for order in ([3], [1], [4, 2], [5, 0, 4]):
        fewer = make_view(view.table_BP.numpy()[order], case.start[order], case.stop[order], 16)
        q_TQD, expected = (torch.cat([x[i] for i in order]) for x in (queries, outputs))
        apart = attend(q_TQD, keys, values, fewer, case.scale, compiled=compiled)
        assert torch.equal(apart, expected), f"sequences {order} by themselves"


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_threads_change_nothing(shape, threads, case_of):
    """Of what the C kernel computes: decode, short pieces, and in float64 everything."""
    if kernel_name().startswith("torch"):
        pytest.skip(f"decode runs in {kernel_name()}")
    longest = 300 if shape[0] == torch.float64 else 8
    case = case_of(shape, [(5, 5), (63, 8), (100, 1), (1, 1), (130, 1), (17, 2), (33, 3), (300, longest)])
    placed = case.placed(16)
    one = attend(case.q_TQD, *placed, case.scale)
    threads(2)
    assert torch.equal(attend(case.q_TQD, *placed, case.scale), one)


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_poison_in_a_sequences_own_slots_shows(shape, case_of, over):
    """The control for every test with NaN in free slots: a kernel must not hide the NaN that it reads."""
    for poisoned in range(2):
        case = case_of(shape, [(70, 1), (90, 3)])
        case.kv[0][poisoned, 40] = torch.nan
        o_TQD = over(case, None)
        assert o_TQD[0].isnan().any(dim=-1).all()
        assert not o_TQD[1:].isnan().any()


def test_large_scores_do_not_overflow(case_of, over):
    case = case_of((torch.float32, 64, 3, 3), [(100, 1), (129, 1)])
    case.q_TQD *= 300
    case.check(over(case, None), tolerance=1e-5)  # scores of 1,000 are known to 1e-4 in float32


def test_queries_need_not_be_contiguous(case_of, over):
    case = case_of((torch.float32, 64, 3, 3), [(100, 1), (129, 1)])
    expected = over(case, None)
    case.q_TQD = case.q_TQD.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(over(case, None), expected)


@pytest.mark.parametrize(("dtype", "new"), [(torch.float32, 6), (torch.float64, 66)])
def test_a_token_is_the_same_alone_and_in_a_piece(dtype, new, case_of):
    """Verified drafts, and in float64 a recomputed sequence, agree with decode steps to the bit."""
    if kernel_name().startswith("torch"):
        pytest.skip(f"decode runs in {kernel_name()}")
    case = case_of((dtype, 64, 3, 3), [(70, new), (90, 1)])
    keys, values, view = case.placed(None)
    together = attend(case.q_TQD, keys, values, view, case.scale)
    for token in range(new):
        stop = np.array([71 - new + token])
        last = make_view(view.start_B[:1, None].numpy().astype(np.int32), stop - 1, stop, None)
        alone = attend(case.q_TQD[token : token + 1], keys, values, last, case.scale)
        assert torch.equal(alone[0], together[token])


def test_an_empty_launch(compiled):
    nothing = np.zeros(0, np.int64)
    view = make_view(np.zeros((0, 1), np.int32), nothing, nothing, None)
    kv_SHD = torch.zeros(4, 3, 64)
    assert attend(torch.zeros(0, 9, 64), kv_SHD, kv_SHD, view, 1.0, compiled=compiled).shape == (0, 9, 64)
