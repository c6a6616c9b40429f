"""Attention kernels against the reference, over both geometries, with poison wherever nobody owns a slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.kernels.attention import attend, kernel_name
from kvlab.kernels.reference import attend as truth
from kvlab.memory.view import make_view

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 6e-3}  # relative RMS
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


class Case:
    """Sequences of these lengths whose slots are scattered as rows and as blocks; all other slots hold NaN."""

    def __init__(self, shape, lengths, new, block_size, seed=0):
        dtype, head_dim, heads, groups = shape
        rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        self.scale = head_dim**-0.5
        stop = np.array(lengths)
        start = stop - np.array(new)
        blocks = -(-stop // block_size)
        slots = (int(blocks.sum()) + 3) * block_size
        table = rng.integers(-(2**31), 2**31 - 1, (len(lengths), int(blocks.max()) + 2)).astype(np.int32)
        order = iter(rng.permutation(slots // block_size).tolist())
        for row, count in enumerate(blocks):
            table[row, :count] = [next(order) for _ in range(count)]
        first = np.cumsum(stop + 1) - stop  # a slot of nobody between rows
        self.blocks = make_view(table, start, stop, block_size)
        self.rows = make_view(first[:, None].astype(np.int32), start, stop, None)
        self.q_TQD = torch.randn(sum(new), heads * groups, head_dim, generator=generator).to(dtype)
        self.paged = [torch.full((slots, heads, head_dim), torch.nan, dtype=dtype) for _ in range(2)]
        self.flat = [
            torch.full((int(stop.sum()) + 9 + len(new), heads, head_dim), torch.nan, dtype=dtype) for _ in range(2)
        ]
        for row, length in enumerate(lengths):
            position = np.arange(length)
            slot_N = table[row, position // block_size].astype(np.int64) * block_size + position % block_size
            for flat, paged in zip(self.flat, self.paged, strict=True):
                x_NHD = torch.randn(length, heads, head_dim, generator=generator).to(dtype)
                flat[first[row] : first[row] + length] = x_NHD
                paged[torch.from_numpy(slot_N)] = x_NHD

    def over_rows(self, **options):
        return attend(self.q_TQD, *self.flat, self.rows, self.scale, **options)

    def over_blocks(self, **options):
        return attend(self.q_TQD, *self.paged, self.blocks, self.scale, **options)

    def truth(self):
        return truth(self.q_TQD, *self.flat, self.rows, self.scale)


def assert_close(result, expected, what):
    error = ((result.double() - expected).square().mean() / expected.square().mean()).sqrt().item()
    assert error < TOLERANCE[result.dtype], f"{what}: relative RMS error {error:.1e}"


def odd_lengths(block_size):
    return sorted({1, max(1, block_size - 1), block_size, block_size + 1, 63, 64, 65, 100, 128, 200})


@pytest.fixture(params=[True, False], ids=["compiled", "torch"])
def compiled(request):
    if request.param and kernel_name() != "c":
        pytest.skip(f"decode runs in {kernel_name()}")
    return request.param


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("block_size", [1, 3, 16, 128])
@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_decode(shape, block_size, compiled):
    lengths = odd_lengths(block_size)
    case = Case(shape, lengths, [1] * len(lengths), block_size)
    rows, blocks = case.over_rows(compiled=compiled), case.over_blocks(compiled=compiled)
    assert rows.dtype == shape[0]
    assert torch.equal(rows, blocks), "the geometries differ"
    assert_close(rows, case.truth(), "decode")


@pytest.mark.parametrize("block_size", [1, 3, 16, 128])
@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_pieces_of_any_length(shape, block_size, compiled):
    """Whole prompts, chunks behind a prefix and single tokens in one launch; one sequence sits out."""
    case = Case(shape, [5, 63, 100, 1, 130, 17, 40], [5, 20, 1, 1, 130, 2, 0], block_size)
    rows, blocks = case.over_rows(compiled=compiled), case.over_blocks(compiled=compiled)
    assert torch.equal(rows, blocks), "the geometries differ"
    assert_close(rows, case.truth(), "pieces")


def test_a_long_chunk_behind_a_prefix_is_split():
    case = Case((torch.float32, 16, 1, 2), [700, 650], [600, 513], 16)
    assert torch.equal(case.over_rows(), case.over_blocks())
    assert_close(case.over_rows(), case.truth(), "long chunks")


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_a_sequence_does_not_notice_who_shares_its_launch(shape, compiled):
    lengths, new = [5, 63, 100, 1, 130, 17], [5, 20, 1, 1, 1, 2]
    case = Case(shape, lengths, new, 16)
    together = case.over_blocks(compiled=compiled)
    stop, first = np.array(lengths), np.cumsum(new) - new
    for order in ([3], [1], [4, 2], [5, 0, 4]):
        table = case.blocks.table_BP.numpy()[order]
        view = make_view(table, stop[order] - np.array(new)[order], stop[order], 16)
        q_TQD = torch.cat([case.q_TQD[first[i] : first[i] + new[i]] for i in order])
        apart = attend(q_TQD, *case.paged, view, case.scale, compiled=compiled)
        expected = torch.cat([together[first[i] : first[i] + new[i]] for i in order])
        assert torch.equal(apart, expected), f"sequences {order} by themselves"


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_threads_change_nothing(shape, threads):
    """Of what the C kernel computes: decode, short pieces, and in float64 everything."""
    if kernel_name() != "c":
        pytest.skip(f"decode runs in {kernel_name()}")
    longest = 300 if shape[0] == torch.float64 else 8
    case = Case(shape, [5, 63, 100, 1, 130, 17, 33, 300], [5, 8, 1, 1, 1, 2, 3, longest], 16)
    threads(1)
    one = case.over_blocks()
    threads(2)
    assert torch.equal(case.over_blocks(), one)


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_poison_in_a_sequences_own_slots_shows(shape, compiled):
    """The control for every test with NaN in free slots: a kernel must not hide the NaN that it reads."""
    for poisoned in range(2):
        case = Case(shape, [70, 90], [1, 3], 16)
        case.flat[poisoned][case.rows.start_B[0] + 40] = torch.nan
        o_TQD = case.over_rows(compiled=compiled)
        assert o_TQD[0].isnan().any(dim=-1).all()
        assert not o_TQD[1:].isnan().any()


def test_large_scores_do_not_overflow(compiled):
    case = Case((torch.float32, 64, 3, 3), [100, 129], [1, 1], 16)
    case.q_TQD *= 300
    assert_close(case.over_rows(compiled=compiled), case.truth(), "large scores")


def test_queries_need_not_be_contiguous(compiled):
    case = Case((torch.float32, 64, 3, 3), [100, 129], [1, 1], 16)
    expected = case.over_rows(compiled=compiled)
    case.q_TQD = case.q_TQD.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(case.over_rows(compiled=compiled), expected)


@pytest.mark.parametrize(("dtype", "new"), [(torch.float32, 6), (torch.float64, 66)])
def test_a_token_is_the_same_alone_and_in_a_piece(dtype, new):
    """Verified drafts, and in float64 a recomputed sequence, agree with decode steps to the bit."""
    if kernel_name() != "c":
        pytest.skip(f"decode runs in {kernel_name()}")
    case = Case((dtype, 64, 3, 3), [70, 90], [new, 1], 16)
    together = case.over_rows()
    for token in range(new):
        stop = np.array([71 - new + token])
        view = make_view(case.rows.start_B[:1, None].numpy().astype(np.int32), stop - 1, stop, None)
        alone = attend(case.q_TQD[token : token + 1], *case.flat, view, case.scale)
        assert torch.equal(alone[0], together[token])


def test_an_empty_launch(compiled):
    nothing = np.zeros(0, np.int64)
    view = make_view(np.zeros((0, 1), np.int32), nothing, nothing, None)
    kv_SHD = torch.zeros(4, 3, 64)
    assert attend(torch.zeros(0, 9, 64), kv_SHD, kv_SHD, view, 1.0, compiled=compiled).shape == (0, 9, 64)
