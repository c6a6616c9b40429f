"""Prefill on the GPU against the reference: prompts and chunks behind prefixes, over rows and over blocks."""

from __future__ import annotations

import itertools
import signal

import numpy as np
import pytest
import torch

from kvlab.errors import UsageError
from kvlab.kernels.gpu.config import Config
from kvlab.kernels.gpu.geometry import Blocks, Rows, make_view
from kvlab.kernels.gpu.prefill import prefill
from kvlab.kernels.gpu.tuning import config_for
from kvlab.kernels.reference import attend as truth
from kvlab.memory import view as host
from kvlab.memory.host_vmm import PAGE_BYTES
from kvlab.memory.view import slots_of

SMALL = Config(tile=16, warps=4, stages=2, queries=16)
WIDE = Config(tile=64, warps=8, stages=2, queries=128)
# (dtype, head size, key/value heads, query heads a key/value head, block size, layers side by side)
SHAPES = [
    (torch.float32, 64, 2, 1, 16, 1),
    (torch.float32, 80, 1, 4, 4, 3),
    (torch.float32, 128, 1, 8, 64, 1),
    (torch.float16, 64, 1, 4, 1, 2),
    (torch.float16, 128, 1, 3, 16, 1),
    (torch.bfloat16, 80, 1, 8, 16, 1),
    (torch.bfloat16, 64, 2, 4, 64, 3),
]


def name(shape):
    dtype, head_dim, heads, groups, block_size, layers = shape
    return f"{str(dtype)[6:]}-{head_dim}-{heads}x{groups}-block{block_size}-{layers}layers"


def build(make_case, shape, lengths, new, seed=0):
    dtype, head_dim, kv_heads, groups, block_size, layers = shape
    return make_case(
        lengths,
        new,
        dtype=dtype,
        head_dim=head_dim,
        kv_heads=kv_heads,
        groups=groups,
        block_size=block_size,
        layers=layers,
        seed=seed,
    )


def parts_of(case, chosen=None):
    """(part, its store) for rows and blocks: these sequences, or all, whatever they have of new tokens.

    The whole table is given, wrong entries included; a sequence that sits out names a row that is not there.
    """
    new_B = case.stop_B - case.start_B
    query_B = np.cumsum(new_B) - new_B
    index_B = np.arange(len(new_B)) if chosen is None else np.array(chosen)
    here = [x_B[index_B].astype(np.int32) for x_B in (case.stop_B, query_B, new_B)]
    length, query, new = (torch.from_numpy(x_B).to(case.device) for x_B in here)
    idle_B = new_B[index_B] == 0
    start = np.where(idle_B, -(2**40), case.row_B1[index_B, 0])
    row = np.where(idle_B, -1, index_B).astype(np.int32)
    table = torch.from_numpy(case.table_BP).to(case.device)
    rows = Rows(torch.from_numpy(start).to(case.device), length, query, new)
    blocks = Blocks(table, torch.from_numpy(row).to(case.device), length, query, new, case.block_size)
    return [(rows, case.flat), (blocks, case.paged)]


def run(case, config, window=None, chosen=None, fill=torch.nan):
    """o_TQD over rows, which is the same to the bit over blocks. No config: what a launch over blocks would choose."""
    heads, head_dim = case.q_TQD.shape[1:]
    groups = heads // case.flat[0].shape[1]
    config = config or config_for("prefill", case.q_TQD.dtype, head_dim, case.block_size, groups)
    most, longest = int((case.stop_B - case.start_B).max()), int(case.stop_B.max())
    results = []
    for part, kv in parts_of(case, chosen):
        o_TQD = torch.full_like(case.q_TQD, fill)
        prefill(case.q_TQD, *kv, o_TQD, part, most, longest, case.scale, window, config)
        results.append(o_TQD)
    assert torch.equal(*results), "the geometries differ"
    return results[0]


@pytest.fixture
def config(device):
    """Few programs for the interpreter; on a GPU what a launch would choose."""
    return WIDE if device == "cpu" else None


@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_prompts_chunks_and_single_tokens_in_one_launch(make_case, assert_close, config, shape):
    """Lengths around a block and a tile, whole or behind a prefix; one sequence sits out."""
    block_size = shape[4]
    lengths = [1, max(1, block_size - 1), block_size, block_size + 1, 63, 100, 40]
    new = [1, min(block_size - 1, 20), 1, min(block_size + 1, 20), 63, 37, 0]
    case = build(make_case, shape, lengths, new)
    assert_close(run(case, config), case.truth(), f"prefill {name(shape)}")


@pytest.mark.parametrize("tile", [SMALL, WIDE, WIDE._replace(queries=16), SMALL._replace(queries=128)], ids=str)
def test_any_tile(make_case, assert_close, tile):
    case = build(make_case, SHAPES[3], [50, 33], [21, 33])
    assert_close(run(case, tile), case.truth(), f"prefill, {tile}")


@pytest.mark.parametrize("window", [1, 7, 16, 40, 64, 1000])
def test_a_window_hides_what_lies_before_it(make_case, assert_close, window):
    """Narrower and wider than a tile of queries and of keys, and than the sequences."""
    case = build(make_case, SHAPES[0], [90, 33, 5], [50, 1, 5])
    assert_close(run(case, WIDE._replace(tile=16), window), case.truth(window), f"prefill, window {window}")


def test_nothing_behind_the_window_is_read(make_case):
    """Slots there may hold anything by now, and their table entries may lead anywhere."""
    case, dead = build(make_case, SHAPES[0], [90], [20]), 61  # the first query sees [61, 71)
    expected = run(case, SMALL, window=10)
    rows, blocks = case.host_rows, case.host_blocks
    for kv, view in ((case.flat, rows), (case.paged, blocks)):
        for kv_SHD in kv:
            kv_SHD[slots_of(view, 0)[:dead].to(case.device)] = torch.nan
    case.table_BP[0, : dead // case.block_size] = 2**31 - 1
    assert torch.equal(run(case, SMALL, window=10), expected)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[4]], ids=name)
def test_a_token_is_the_same_in_any_chunk_and_company(make_case, config, shape):
    """Chunked prefill changes no token; nor does who shares the launch."""
    whole = build(make_case, shape, [80, 20], [80, 20])
    expected = run(whole, config)
    for start, stop in itertools.pairwise([0, 37, 38, 64, 80]):
        whole.start_B, whole.stop_B = np.array([start]), np.array([stop])
        packed_TQD = whole.q_TQD
        whole.q_TQD = packed_TQD[start:stop]
        chunk = run(whole, config)
        whole.q_TQD = packed_TQD
        assert torch.equal(chunk, expected[start:stop]), f"tokens {start} to {stop} as a chunk"


def test_tokens_of_other_sequences_are_left_alone(make_case):
    """The other part of a launch has written, or will write, the rest of the output."""
    case = build(make_case, SHAPES[1], [20, 9, 35, 1], [20, 1, 5, 1])
    expected, some = run(case, SMALL), run(case, SMALL, chosen=[2, 0], fill=7)
    assert torch.equal(some[:20], expected[:20])
    assert torch.equal(some[21:26], expected[21:26])
    assert (some[20] == 7).all()
    assert (some[26] == 7).all()


@pytest.mark.parametrize("poisoned", [0, 1], ids=["key", "value"])
def test_poison_in_a_sequences_own_slots_shows(make_case, poisoned):
    """The control for NaN in free slots: a kernel must not hide the NaN that it reads."""
    case = build(make_case, SHAPES[0], [40, 20], [30, 20])
    (rows, flat), _ = parts_of(case)
    flat[poisoned][int(rows.start_B[0]) + 25] = torch.nan
    o_TQD = torch.zeros_like(case.q_TQD)
    prefill(case.q_TQD, *flat, o_TQD, rows, 30, 40, case.scale, config=SMALL)
    hit_T = o_TQD.isnan().flatten(1).any(1).cpu()
    assert hit_T[15:30].all(), "a query hides poison that it sees"
    assert not hit_T[30:].any()
    assert poisoned == 1 or not hit_T[:15].any(), "a query notices a key that it does not see"


def test_queries_and_outputs_may_be_slices(make_case, assert_close):
    """Queries as a model has them: a part of one packed projection."""
    case = build(make_case, SHAPES[1], [20, 35], [20, 5])
    heads, (rows, flat) = case.q_TQD.shape[1], parts_of(case)[0]
    packed_TQD = torch.full((25, heads + 7, 80), torch.nan, device=case.device)
    packed_TQD[:, 3 : 3 + heads] = case.q_TQD
    o_TQD = torch.full((25, 2 * heads, 80), 7.0, device=case.device)
    prefill(packed_TQD[:, 3 : 3 + heads], *flat, o_TQD[:, ::2], rows, 20, 35, case.scale, config=SMALL)
    assert_close(o_TQD[:, ::2], case.truth(), "prefill, sliced queries")
    assert (o_TQD[:, 1::2] == 7).all()


def test_bounds_larger_than_the_launch_change_nothing(make_case):
    case = build(make_case, SHAPES[0], [20, 35], [20, 5])
    (rows, flat), _ = parts_of(case)
    o_TQD = torch.zeros_like(case.q_TQD)
    prefill(case.q_TQD, *flat, o_TQD, rows, 64, 1000, case.scale, config=SMALL)
    assert torch.equal(o_TQD, run(case, SMALL))


def test_large_scores_do_not_overflow(make_case, assert_close):
    case = build(make_case, SHAPES[0], [70], [40])
    case.q_TQD *= 300
    assert_close(run(case, SMALL), case.truth(), "prefill, large scores")


def test_an_empty_launch_writes_nothing(make_case):
    case = build(make_case, SHAPES[0], [20], [0])
    (rows, flat), _ = parts_of(case)
    o_TQD = torch.full((3, 2, 64), 7.0, device=case.device)
    prefill(torch.zeros_like(o_TQD), *flat, o_TQD, rows, 0, 20, 1.0, config=SMALL)
    prefill(torch.zeros_like(o_TQD), *flat, o_TQD, rows, 5, 20, 1.0, config=SMALL)
    assert (o_TQD == 7).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"most": 30}, r"most=30 of longest=20 tokens: allowed is 0 <= most <= longest < 1073741824"),
        ({"most": 2**29, "longest": 2**29}, r"most=536870912 .*allowed"),
        ({"window": 0}, r"window=0: allowed is 1 or more"),
        ({"o_TQD": torch.zeros(5, 3, 64)}, r"output of shape \(5, 3, 64\): allowed"),
        ({"v_SHD": torch.zeros(40, 2, 128)[..., ::2]}, r"values .*allowed"),
    ],
    ids=["most", "products", "window", "output", "layout"],
)
def test_what_is_not_allowed_is_named(make_case, change, message):
    case = build(make_case, (torch.float32, 64, 2, 2, 16, 1), [20], [5])
    (rows, (k_SHD, v_SHD)), _ = parts_of(case)
    given = {
        "q_TQD": case.q_TQD, "k_SHD": k_SHD, "v_SHD": v_SHD, "o_TQD": torch.zeros_like(case.q_TQD), "part": rows,
        "most": 5, "longest": 20, "scale": 1.0, "config": SMALL,
    }  # fmt: skip
    with pytest.raises(UsageError, match=message):
        prefill(**{**given, **change})


# Memory that is not there: an access kills the process that makes it.

PAGE = PAGE_BYTES // (2 * 64 * 2)  # slots of two heads of 64 float16


def both_geometries(first_B, lengths, new, block_size):
    """(part, the reference's view) of rows of slots, and of the same as blocks with wrong entries behind the last."""
    stop_B, first_B = np.array(lengths), np.array(first_B)
    start_B = stop_B - np.array(new)
    table_BP = first_B[:, None] // block_size + np.arange(stop_B.max() // block_size + 2)
    for row, length in enumerate(lengths):
        table_BP[row, -(-length // block_size) :] = 2**31 - 1
    for table, size in ((first_B[:, None], None), (table_BP, block_size)):
        table = table.astype(np.int32)
        part = make_view(table, start_B, stop_B, size, "cpu").prefill
        yield part, host.make_view(table, start_B, stop_B, size)


def run_over(kv, q_TQD, part):
    o_TQD = torch.full_like(q_TQD, torch.nan)
    prefill(q_TQD, *kv, o_TQD, part.sequences, part.most, part.longest, 0.125, config=WIDE)
    return o_TQD


def test_rows_that_end_where_memory_ends(reserved, ending, assert_close):
    lengths, new, first_B = [PAGE, 5 * PAGE, 4 * PAGE], [PAGE, 2, 40], [0, 8 * PAGE, 16 * PAGE]
    mapped = [(first, first + length) for first, length in zip(first_B, lengths, strict=True)]
    kv = reserved(24 * PAGE, mapped, 1, 2, 64)
    q_TQD = torch.randn(sum(new), 4, 64).half()
    for part, view in both_geometries(first_B, lengths, new, PAGE):
        assert ending(lambda part=part: run_over(kv, q_TQD, part)) == 0
        assert_close(run_over(kv, q_TQD, part), truth(q_TQD, *kv, view, 0.125), "prefill, guarded")


@pytest.mark.parametrize("geometry", [0, 1], ids=["rows", "blocks"])
def test_one_token_more_would_die(reserved, ending, geometry):
    """The control: were there no guard, the test above would show nothing."""
    kv = reserved(8 * PAGE, [(0, 4 * PAGE)], 1, 2, 64)
    part, _ = list(both_geometries([0], [4 * PAGE + 1], [20], PAGE))[geometry]
    assert ending(lambda: run_over(kv, torch.randn(20, 4, 64).half(), part)) == -signal.SIGSEGV


def test_slots_past_the_32_bits_of_an_element(reserved, ending, assert_close):
    """64-bit addressing: in 32 bits these offsets would wrap round to where there is no memory."""
    far = (2**31 // (32 * 64) // 16 + 1) * 16  # slots of 32 layers; elements are past 2**31, one head of 64 each
    lengths, new, first_B = [32, 27], [32, 9], [far, 2 * far]
    kv = reserved(2 * far + 32, [(first, first + 32) for first in first_B], 32, 1, 64)
    q_TQD = torch.randn(sum(new), 4, 64).half()
    for part, view in both_geometries(first_B, lengths, new, 16):
        assert ending(lambda part=part: run_over(kv, q_TQD, part)) == 0
        assert_close(run_over(kv, q_TQD, part), truth(q_TQD, *kv, view, 0.125), "prefill, far slots")


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [2, 32, 256])
@pytest.mark.parametrize(("groups", "dtype"), [(1, torch.float16), (8, torch.bfloat16), (3, torch.float32)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_shape(make_case, assert_close, head_dim, groups, dtype, block_size):
    """With the shape of a program that a launch would choose by itself."""
    shape = (dtype, head_dim, 1, groups, block_size, 2)
    case = build(make_case, shape, [1, 63, 130, block_size + 1], [1, 33, 17, 2])
    assert_close(run(case, None), case.truth(), f"prefill {name(shape)}")
