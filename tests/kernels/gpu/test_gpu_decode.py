"""Decode on the GPU against the reference, with poison or no memory at all wherever nobody owns a slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.errors import UsageError
from kvlab.kernels.gpu.attention import attend
from kvlab.kernels.gpu.config import Config
from kvlab.kernels.gpu.decode import decode
from kvlab.kernels.gpu.geometry import make_view
from kvlab.kernels.gpu.splits import MOST, RESIDENT, splits_for

SMALL = Config(tile=32, warps=4, stages=2)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# head size, query heads a key/value head, block size
SHAPES = [(64, 1, 1), (80, 4, 4), (64, 8, 16), (128, 4, 64), (128, 1, 128)]
SENTINEL = 77.0


def run(q_TQD, kv, part, scale, config=SMALL, **options):
    """o_TQD of the part's sequences; of all others the sentinel."""
    o_TQD = torch.full_like(q_TQD, SENTINEL)
    decode(q_TQD, *kv, o_TQD, part.sequences, part.longest, scale, config=config, **options)
    return o_TQD


def over_rows(case, **options):
    return run(case.q_TQD, case.flat, case.rows.decode, case.scale, **options)


def over_blocks(case, **options):
    return run(case.q_TQD, case.paged, case.blocks.decode, case.scale, **options)


def odd_lengths(block_size):
    return sorted({1, max(1, block_size - 1), block_size, min(block_size + 1, 100), 63, 100})


def check_shape(make_case, assert_close, dtype, shape, **options):
    head_dim, groups, block_size = shape
    case = make_case(
        odd_lengths(block_size), dtype=dtype, head_dim=head_dim, kv_heads=1, groups=groups, block_size=block_size,
        layers=2,
    )  # fmt: skip
    rows, blocks = over_rows(case, **options), over_blocks(case, **options)
    assert torch.equal(rows, blocks), "the geometries differ"
    assert_close(rows, case.truth(), f"decode {shape}, {options}")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_odd_lengths(make_case, assert_close, dtype, shape):
    check_shape(make_case, assert_close, dtype, shape)


@pytest.mark.slow
@pytest.mark.parametrize(("tile", "splits"), [(16, 3), (64, 2), (128, 1)])
@pytest.mark.parametrize("block_size", [2, 8, 256])
@pytest.mark.parametrize(("head_dim", "groups"), [(16, 3), (96, 8), (256, 5), (32, 33)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_shape(make_case, assert_close, dtype, head_dim, groups, block_size, tile, splits):
    config = Config(tile, warps=4, stages=2)
    check_shape(make_case, assert_close, dtype, (head_dim, groups, block_size), config=config, splits=splits)


def test_the_committed_configuration_and_number_of_pieces(make_case, assert_close):
    case = make_case([100, 17], dtype=torch.bfloat16, head_dim=128, groups=4)
    rows, blocks = over_rows(case, config=None), over_blocks(case, config=None)
    for name, o_TQD in (("rows", rows), ("blocks", blocks)):
        assert_close(o_TQD, case.truth(), f"{name} as committed")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_number_of_pieces_gives_the_same(make_case, assert_close, dtype):
    """Some sequences have fewer tiles than there are pieces, one has a single token."""
    case = make_case([1, 64, 100], dtype=dtype, kv_heads=1)
    one = over_blocks(case, splits=1).cpu().double()
    for splits in (2, 3, 4, 5):
        o_TQD = over_blocks(case, splits=splits)
        assert_close(o_TQD, one, f"{splits} pieces against one")
        assert_close(o_TQD, case.truth(), f"{splits} pieces")
        if splits == 3:
            assert torch.equal(o_TQD, over_rows(case, splits=splits)), "the geometries differ"
            assert torch.equal(o_TQD, over_blocks(case, splits=splits)), "a repetition differs"


def test_more_pieces_than_are_joined_at_once(make_case, assert_close):
    """Keys weigh more and more, so that each turn of the second kernel outweighs what it has so far."""
    case = make_case([300, 17], kv_heads=1, groups=4)
    first = int(case.row_B1[0, 0])
    case.flat[0][first : first + 300] *= torch.linspace(0, 4, 300, device=case.device)[:, None, None]
    o_TQD = over_rows(case, splits=18, config=Config(tile=16, warps=4, stages=2))
    assert_close(o_TQD, case.truth(), "18 pieces")


@pytest.mark.parametrize("splits", [1, 3])
def test_a_sequence_does_not_notice_who_shares_its_launch(make_case, device, splits):
    case = make_case([40, 100, 17, 63], kv_heads=1, groups=1)
    together = over_blocks(case, splits=splits)
    for order in ([1], [3, 0]):
        view = make_view(case.table_BP[order], case.start_B[order], case.stop_B[order], 16, device)
        apart = run(case.q_TQD[order].contiguous(), case.paged, view.decode, case.scale, splits=splits)
        assert torch.equal(apart, together[order]), f"sequences {order} by themselves"


@pytest.mark.parametrize("geometry", ["rows", "blocks"])
@pytest.mark.parametrize("splits", [1, 2])
def test_padding_reads_and_writes_nothing(make_case, assert_close, geometry, splits):
    """A padding sequence's place may be anything, and so may the token that it names."""
    case = make_case([40, 63, 17, 5], kv_heads=1)
    part, kv = (case.rows.decode, case.flat) if geometry == "rows" else (case.blocks.decode, case.paged)
    length_B, place_B = part.sequences.length_B.clone(), part.sequences[geometry == "blocks"].clone()
    length_B[1:3], place_B[1:3] = 0, 2**31 - 1
    named = {"start_B": place_B} if geometry == "rows" else {"row_B": place_B}
    padded = part._replace(sequences=part.sequences._replace(length_B=length_B, **named))
    o_TQD = run(case.q_TQD, kv, padded, case.scale, splits=splits)
    assert (o_TQD[1:3] == SENTINEL).all()
    assert_close(o_TQD[[0, 3]], case.truth()[[0, 3]], "beside padding")


@pytest.mark.parametrize(("window", "splits"), [(1, 1), (16, 2), (37, 1), (37, 3), (1000, 1)])
def test_a_window_sees_the_last_tokens_alone(make_case, assert_close, window, splits):
    """What lies before it may have been given away: its entries are wrong and its slots hold NaN."""
    case = make_case([1, 16, 100], block_size=4, kv_heads=1)
    expected = case.truth(window)
    sequences = case.blocks.decode.sequences
    for index, length in enumerate(case.stop_B.tolist()):
        before = max(0, length - window)
        row = int(case.row_B1[index, 0])
        sequences.table_RP[index, : before // 4] = 2**31 - 1
        for kv_SHD in case.flat:
            kv_SHD[row : row + before] = torch.nan
    for name, o_TQD in (
        ("rows", over_rows(case, window=window, splits=splits)),
        ("blocks", over_blocks(case, window=window, splits=splits)),
    ):
        assert_close(o_TQD, expected, f"{name}, window {window}, {splits} pieces")


@pytest.mark.parametrize(("at", "splits"), [(0, 1), (40, 2), (69, 1), (69, 2)])
def test_poison_in_a_sequences_own_slots_shows(make_case, splits, at):
    """The control for NaN in free slots: a kernel must not hide the NaN that it reads."""
    for poisoned in range(2):
        case = make_case([70, 90], kv_heads=1, groups=1)
        case.flat[poisoned][int(case.row_B1[0, 0]) + at] = torch.nan
        o_TQD = over_rows(case, splits=splits)
        assert o_TQD[0].isnan().any(dim=-1).all()
        assert not o_TQD[1].isnan().any()


def test_large_scores_do_not_overflow(make_case, assert_close):
    case = make_case([100, 64], kv_heads=1)
    case.q_TQD *= 100  # binary exponents of several hundred
    assert_close(over_blocks(case, splits=2), case.truth(), "large scores")


def test_queries_and_output_may_have_any_token_and_head_stride(make_case):
    case = make_case([33, 64])
    expected = [over_blocks(case, splits=splits) for splits in (1, 2)]
    case.q_TQD = case.q_TQD.transpose(0, 1).contiguous().transpose(0, 1)
    assert not case.q_TQD.is_contiguous()
    for splits in (1, 2):
        o_TQD = over_blocks(case, splits=splits)
        assert not o_TQD.is_contiguous()
        assert torch.equal(o_TQD, expected[splits - 1])


@pytest.mark.parametrize("geometry", ["rows", "blocks"])
def test_a_launch_with_both_parts(make_case, assert_close, geometry):
    case = make_case([63, 20, 1, 30], [1, 20, 1, 4], kv_heads=1)
    kv = case.flat if geometry == "rows" else case.paged
    o_TQD = attend(case.q_TQD, *kv, getattr(case, geometry), case.scale)
    assert_close(o_TQD, case.truth(), f"{geometry}, decode and prefill together")
    windowed = attend(case.q_TQD, *kv, getattr(case, geometry), case.scale, window=9)
    assert_close(windowed, case.truth(9), f"{geometry}, decode and prefill in a window")


def test_an_empty_launch(device):
    nothing = np.zeros(0, np.int64)
    view = make_view(np.zeros((0, 1), np.int32), nothing, nothing, None, device)
    kv_SHD = torch.zeros(4, 2, 64, device=device)
    assert attend(torch.zeros(0, 4, 64, device=device), kv_SHD, kv_SHD, view, 1.0).shape == (0, 4, 64)


# What is refused, and how much a launch is cut up.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 40}, "heads of 40"),
        ({"head_dim": 272}, "heads of 272"),
        ({"groups": 65}, "65 query heads over 1"),
        ({"block_size": 12}, "block_size=12"),
        ({"block_size": 512}, "block_size=512"),
        ({"dtype": torch.float64}, "float64"),
    ],
)
def test_shapes_that_are_not_allowed(make_case, options, message):
    case = make_case([5], **{"kv_heads": 1, **options})
    with pytest.raises(UsageError, match=message):
        over_blocks(case)


@pytest.mark.parametrize(
    ("options", "message"), [({"window": 0}, "window=0"), ({"splits": 0}, "splits=0"), ({"splits": 129}, "splits=129")]
)
def test_options_that_are_not_allowed(make_case, options, message):
    with pytest.raises(UsageError, match=message):
        over_blocks(make_case([5]), **options)


def test_keys_and_values_laid_out_otherwise(make_case):
    case = make_case([5])
    with pytest.raises(UsageError, match="laid out alike"):
        run(case.q_TQD, [case.paged[0], case.paged[1][1:]], case.blocks.decode, case.scale)
    apart = [x_SHD.transpose(1, 2).contiguous().transpose(1, 2) for x_SHD in case.paged]
    with pytest.raises(UsageError, match="contiguous"):
        run(case.q_TQD, apart, case.blocks.decode, case.scale)


def test_small_launches_are_cut_until_the_machine_is_full():
    assert splits_for(64 * 8, 4096, 64, 132) == 1
    assert splits_for(1, 64, 64, 132) == 1
    few = splits_for(8 * 8, 16384, 64, 132)
    assert 2 * 132 < 8 * 8 * few <= RESIDENT * 132
    assert splits_for(8, 131072, 64, 132) > few
    assert splits_for(1, 10**6, 16, 132) <= MOST
    assert splits_for(1, 200, 64, 132) <= 4, "no more pieces than tiles"


@pytest.mark.gpu
def test_a_captured_launch_reads_lengths_when_it_runs(make_case, assert_close, device):
    if device != "cuda":
        pytest.skip("needs a CUDA device")
    case = make_case([100, 63, 17], dtype=torch.bfloat16, groups=4)
    sequences = case.blocks.decode.sequences
    length_B, graph = sequences.length_B.clone(), torch.cuda.CUDAGraph()
    o_TQD = torch.empty_like(case.q_TQD)
    arguments = (case.q_TQD, *case.paged, o_TQD, sequences, 100, case.scale)
    decode(*arguments, splits=2)  # compiles
    sequences.length_B.zero_()
    with torch.cuda.graph(graph):
        decode(*arguments, splits=2)
    o_TQD.fill_(SENTINEL)
    graph.replay()
    assert (o_TQD == SENTINEL).all(), "sequences of length 0 wrote"
    sequences.length_B.copy_(length_B)
    graph.replay()
    assert_close(o_TQD, case.truth(), "replayed")
