"""Single queries through the C kernel: against the reference, and the same to the bit however they come."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from kvlab.kernels import compiler, decode

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

QUICK = [
    (torch.float32, 64, 3, 3),
    (torch.bfloat16, 64, 3, 3),
]  # dtype, head size, key/value heads, query heads of each
OTHERS = [(torch.float32, 128, 9, 1), (torch.float32, 96, 2, 8), (torch.float32, 80, 5, 4), (torch.float32, 64, 1, 17),
          (torch.bfloat16, 128, 3, 4), (torch.bfloat16, 96, 9, 1), (torch.bfloat16, 80, 2, 8)]  # fmt: skip
SHAPES = [
    pytest.param(shape, id=f"{str(shape[0])[6:]}-{shape[1]}-{shape[2]}x{shape[3]}", marks=marks)
    for shapes, marks in ((QUICK, []), (OTHERS, [pytest.mark.slow]))  # each is compiled by itself
    for shape in shapes
]
LENGTHS = (1, 15, 16, 17, 63, 100, 1000)
NAMES = {"skylake-avx512": "avx512", "haswell": "avx2", "x86-64": "baseline"}
INSTRUCTIONS = {"native": None, "skylake-avx512": "avx512f", "haswell": "avx2", "x86-64": "sse2"}


def over(case, k_pool, v_pool, view, window=None, function=None):
    dtype, head_dim, _, groups = case.shape
    function = function or decode.kernel(dtype, head_dim, groups)[0]
    o_BQD = torch.full_like(case.q_TQD, torch.nan)
    queries = decode.queries_of(view, 1)
    decode.Decoding(function, k_pool, view, queries, case.scale, window)(case.q_TQD, k_pool, v_pool, o_BQD)
    return o_BQD


def run(case, block_size=None, tile=1, window=None, function=None):
    return over(case, *case.placed(block_size, tile), window, function)


@pytest.fixture
def single(case_of):
    """single(shape, lengths): sequences with a query each."""
    return lambda shape, lengths=LENGTHS: case_of(shape, [(length, 1) for length in lengths])


@pytest.mark.parametrize("shape", SHAPES)
def test_ragged_lengths_in_every_geometry_and_layout(shape, single):
    """One truth, and the same bits over rows, over shuffled blocks and in either layout; NaN in all other slots."""
    case = single(shape)
    o_BQD = run(case)
    case.check(o_BQD)
    for block_size in (None, 1, 5, 16, 64):
        for tile in (1, 2, 16, 64):
            assert torch.equal(run(case, block_size, tile), o_BQD), f"block size {block_size}, tile {tile}"


@pytest.mark.parametrize("window", [1, 16, 17, 100, 900, 5000])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_window_leaves_older_tokens_alone(shape, window, single):
    """What is older may be NaN."""
    case = single(shape)
    k_pool, v_pool, view = case.placed(None)
    for start, length in zip(view.start_B.tolist(), case.stop, strict=True):
        for pool in (k_pool, v_pool):
            pool[start : start + max(0, length - window)] = torch.nan
    o_BQD = over(case, k_pool, v_pool, view, window)
    case.check(o_BQD, window)
    assert torch.equal(run(case, 16, 16, window), o_BQD)


@pytest.mark.parametrize("lengths", [(1,), (300,), (3000,), (6000, 40)])
@pytest.mark.parametrize("shape", SHAPES)
def test_threads_share_a_sequence_and_change_nothing(shape, lengths, threads, single):
    """A long sequence is cut by its own length: it is the same with one thread, with more, and among others."""
    case = single(shape, lengths)
    one = run(case)
    case.check(one)
    for count in (2, 3, 16):
        threads(count)
        assert torch.equal(run(case), one), f"{count} threads"
    more = single(shape, (*lengths, *[20] * 99))  # so many that none is cut
    assert torch.equal(run(more, 16)[: len(lengths)], one)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_instruction_set(shape, instructions, monkeypatch, tmp_path, single):
    """What other machines compile, here: AVX-512 without dot products of bfloat16, AVX2, and neither."""
    needed = INSTRUCTIONS[instructions]
    if needed and needed not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this CPU has no {needed}")
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-Werror", f"-march={instructions}"))
    function, name = decode.kernel.__wrapped__(shape[0], shape[1], shape[3])
    assert instructions == "native" or name == f"c, {NAMES[instructions]}"
    case = single(shape)
    o_BQD = run(case, function=function)
    case.check(o_BQD)
    assert torch.equal(run(case, 16, 16, function=function), o_BQD)


def test_scores_far_apart_and_rising(single):
    """The maximum that weights are relative to rises late and by leaps; what came before then counts for nothing."""
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 0.12)):  # scores of 100 are rounded themselves
        case = single((dtype, 64, 3, 3), (100, 300))
        for kv_2NHD in case.kv:
            kv_2NHD[0] *= torch.linspace(0, 40, kv_2NHD.shape[1], dtype=dtype)[:, None, None]
        case.check(run(case), tolerance=tolerance)


def test_many_tokens_under_one_maximum(single):
    """Equal scores: each weight is the same, and 6,000 of them add up to the mean."""
    case = single((torch.float32, 64, 1, 1), (6000,))
    case.kv[0][0] = 0
    assert torch.allclose(run(case)[0, 0], case.kv[0][1].mean(0)[0], atol=1e-6)


@pytest.mark.parametrize("head_dim", [7, 14])
def test_head_sizes_without_a_kernel_are_named(head_dim):
    """Heads that no lanes divide go through torch."""
    decode.kernel.cache_clear()
    function, name = decode.kernel(torch.bfloat16, head_dim, 1)
    assert function is None
    assert "HEAD_DIM is no multiple of 2, or of 4 in bfloat16" in name
