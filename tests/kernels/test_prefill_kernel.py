"""Pieces of several tokens through the C kernel: against the reference, and the same however they come."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kvlab.kernels import compiler, prefill
from kvlab.kernels.pool import slots_in

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

# (dtype, head size, key/value heads, query heads a key/value head)
SHAPES = [
    (torch.float32, 64, 3, 3),
    (torch.float32, 128, 1, 8),
    (torch.float32, 20, 2, 4),
    (torch.float32, 8, 1, 1),
    (torch.bfloat16, 64, 3, 3),
    (torch.bfloat16, 80, 2, 1),
    (torch.bfloat16, 96, 1, 4),
    (torch.bfloat16, 7, 2, 8),
]
SLOW = (1, 3, 5, 6)  # of SHAPES; each is compiled by itself
NAMES = [f"{str(dtype)[6:]}-{dim}-{heads}x{groups}" for dtype, dim, heads, groups in SHAPES]
ALL = [
    pytest.param(shape, id=name, marks=[pytest.mark.slow] if index in SLOW else [])
    for index, (shape, name) in enumerate(zip(SHAPES, NAMES, strict=True))
]
PIECES = [(5, 5), (63, 20), (100, 1), (1, 1), (130, 130), (200, 70), (65, 0), (257, 17)]  # length, of it new
INSTRUCTIONS = ["native", "skylake-avx512", "haswell", "x86-64"]  # the second without dot products of bfloat16


def function_of(shape):
    dtype, head_dim, _, groups = shape
    found = prefill.kernel(dtype, head_dim, groups)
    assert found is not None
    return found


def run(case, block_size=None, tile=1, window=None):
    """o_TQD through the C kernel."""
    keys, values, view = case.placed(block_size, tile)
    o_TQD = torch.full_like(case.q_TQD, torch.nan)
    prefill.prefill_all(function_of(case.shape), case.q_TQD, keys, values, o_TQD, view, 1, case.scale, window)
    return o_TQD


@pytest.mark.parametrize("shape", ALL)
def test_every_geometry_and_layout_gives_the_same_and_it_is_right(shape, case_of):
    case = case_of(shape, PIECES)
    rows = run(case)
    case.check(rows)
    for block_size in (None, 1, 3, 16, 128):
        for tile in (1, 4, 16):
            assert torch.equal(run(case, block_size, tile), rows), f"block {block_size}, tile {tile}"


def test_shorter_pieces_are_left_alone(case_of):
    case = case_of(SHAPES[0], PIECES)
    keys, values, view = case.placed(16, 1)
    o_TQD, expected = torch.full_like(case.q_TQD, 7.0), run(case, 16)
    prefill.prefill_all(function_of(case.shape), case.q_TQD, keys, values, o_TQD, view, 6, case.scale)
    stop = 0
    for _, new in PIECES:
        start, stop = stop, stop + new
        assert torch.equal(o_TQD[start:stop], expected[start:stop]) if new >= 6 else (o_TQD[start:stop] == 7.0).all()


@pytest.mark.parametrize("window", [1, 5, 64, 100])
@pytest.mark.parametrize("shape", SHAPES[::4], ids=NAMES[::4])
def test_a_window_hides_what_lies_before_it(shape, window, case_of):
    case = case_of(shape, PIECES)
    case.check(run(case, 16, 16, window), window)


def test_what_a_window_hides_is_not_even_read(case_of):
    case = case_of(SHAPES[0], [(200, 40)])
    expected = run(case, window=50)
    case.kv[0][:, :64] = torch.nan  # the first query, at 160, sees from 111 on: tile 1 is the first one read
    assert torch.equal(run(case, window=50), expected)


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("shape", ALL)
def test_a_prompt_gives_the_same_however_it_is_cut(shape, window, case_of):
    whole = case_of(shape, [(300, 300)])
    expected = run(whole, window=window)
    for cuts in ([0, 100, 109, 173, 300], [0, 1, 2, 64, 65, 299, 300], [0, 150, 300]):
        for start, stop in pairwise(cuts):
            piece = case_of(shape, [(stop, stop - start)])
            piece.q_TQD, piece.kv = whole.q_TQD[start:stop], [whole.kv[0][:, :stop]]
            assert torch.equal(run(piece, 16, window=window), expected[start:stop]), f"[{start}, {stop}) of {cuts}"


@pytest.mark.parametrize("shape", SHAPES[::4], ids=NAMES[::4])
def test_a_sequence_does_not_notice_the_others_nor_the_threads(shape, threads, case_of):
    case = case_of(shape, PIECES)
    together = run(case, 16)
    threads(2)
    assert torch.equal(run(case, 16), together)
    first = 0
    for row, (length, new) in enumerate(PIECES):
        if new:
            alone = case_of(shape, [(length, new)])
            alone.q_TQD, alone.kv = case.q_TQD[first : first + new], [case.kv[row]]
            assert torch.equal(run(alone, 16), together[first : first + new])
        first += new


@pytest.mark.parametrize("which", [0, 1], ids=["key", "value"])
@pytest.mark.parametrize("shape", SHAPES[::4], ids=NAMES[::4])
def test_poison_in_a_token_shows_in_those_that_see_it_alone(shape, which, case_of):
    """The control for every NaN in a slot of nobody, and that no query sees a later token.

    Up to five rows share a group with the token; a value of theirs that is no number would show, as a key does not.
    """
    case = case_of(shape, [(150, 100)])
    case.kv[0][which, 120] = torch.nan
    o_TQD = run(case, 16)
    assert o_TQD[120 - 50 :].isnan().any(-1).all()
    assert not o_TQD[: 120 - 50 - (5 if which else 0)].isnan().any()


def test_large_scores_do_not_overflow(case_of):
    case = case_of(SHAPES[0], [(129, 129), (200, 30)])
    case.q_TQD *= 300
    case.check(run(case), tolerance=1e-5)  # scores of 1,000 are known to 1e-4 in float32, in torch too


@pytest.mark.slow
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_instruction_set_is_right(dtype, instructions, compiled_for, case_of):
    compiled_for(instructions)
    case = case_of((dtype, 80, 2, 3), PIECES)
    rows = run(case)
    case.check(rows)
    assert torch.equal(run(case, 16, 16), rows)


@pytest.fixture
def compiled_for(monkeypatch, tmp_path):
    """Compile for that machine from here on; skipped where this one cannot run it."""
    flags = " ".join(Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split())
    needs = {"skylake-avx512": "avx512vl", "haswell": "avx2"}

    def use(name):
        if needs.get(name, "") not in flags:
            pytest.skip(f"this machine lacks {needs[name]}")
        swapped = tuple(flag.replace("-march=native", f"-march={name}") for flag in compiler.FLAGS)
        monkeypatch.setattr(compiler, "FLAGS", swapped)
        monkeypatch.setattr(compiler, "cache_dir", lambda: tmp_path)
        prefill.kernel.cache_clear()

    yield use
    prefill.kernel.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("element", prefill.ELEMENTS.values())
def test_the_kernel_compiles_without_warnings(element, instructions, tmp_path):
    source = Path(prefill.__file__).with_name("prefill.c")
    flags = [flag.replace("-march=native", f"-march={instructions}") for flag in compiler.FLAGS]
    shape = [f"-D{element}", "-DHEAD_DIM=72", "-DGROUPS=3", "-DQUERIES=64"]
    command = ["cc", *flags, "-Wall", "-Wextra", "-Werror", *shape, "-o", str(tmp_path / "kernel.so"), str(source)]
    subprocess.run([*command, "-lm"], check=True)


def test_loading_the_kernel_leaves_denormals_alone():
    assert prefill.kernel(torch.float32, 64, 3) is not None
    assert float(torch.tensor([1e-40]) * 1) != 0.0


def test_types_without_a_kernel_have_none():
    assert prefill.kernel(torch.float64, 64, 3) is None
    assert prefill.kernel(torch.float16, 64, 3) is None


def test_pools_have_whole_tiles(case_of):
    keys, _, _ = case_of(SHAPES[2], [(5, 5)]).placed(None, 16)
    assert (keys.dim(), slots_in(keys) % 16) == (4, 0)
