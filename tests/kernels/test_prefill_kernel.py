"""Pieces of several tokens through the C kernel: against the reference, and the same however they come."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from kvlab.kernels import compiler, prefill
from kvlab.kernels.pool import put, slots_in
from kvlab.kernels.reference import attend as truth
from kvlab.memory.view import make_view

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 6e-3}  # relative RMS
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


class Case:
    """Sequences of random tokens; `placed` puts them into a pool of NaN wherever a table says."""

    def __init__(self, shape, pieces, seed=0):
        self.shape, generator = shape, torch.Generator().manual_seed(seed)
        dtype, head_dim, heads, groups = shape
        self.scale = head_dim**-0.5
        self.stop, new = np.array(pieces).T
        self.start = self.stop - new
        self.q_TQD = torch.randn(int(new.sum()), heads * groups, head_dim, generator=generator).to(dtype)
        self.kv = [torch.randn(2, length, heads, head_dim, generator=generator).to(dtype) for length in self.stop]

    def placed(self, block_size, tile):
        """Pools of keys and of values, and the view; block_size None: rows, one slot of nobody before each."""
        rng, rows = np.random.default_rng(1), block_size is None
        if rows:
            table = (np.cumsum(self.stop + 1) - self.stop)[:, None].astype(np.int32)
            slots = int((self.stop + 1).sum()) + 3
        else:
            blocks = -(-self.stop // block_size)
            slots = (int(blocks.sum()) + 3) * block_size
            table = rng.integers(-(2**31), 2**31 - 1, (len(blocks), int(blocks.max()) + 2)).astype(np.int32)
            order = iter(rng.permutation(slots // block_size).tolist())
            for row, count in enumerate(blocks):
                table[row, :count] = [next(order) for _ in range(count)]
        return *self._pools(table, block_size, slots, tile), make_view(table, self.start, self.stop, block_size)

    def _pools(self, table, block_size, slots, tile):
        dtype, head_dim, heads, _ = self.shape
        shape = (slots, heads, head_dim) if tile == 1 else (-(-slots // tile), heads, tile, head_dim)
        pools = torch.full((2, *shape), torch.nan, dtype=dtype)
        for row, kv_2NHD in enumerate(self.kv):
            position = np.arange(kv_2NHD.shape[1])
            size = block_size or 1 << 30
            slot_N = table[row, position // size].astype(np.int64) * (block_size or 1) + position % size
            for pool, x_NHD in zip(pools, kv_2NHD, strict=True):
                put(pool, torch.from_numpy(slot_N), x_NHD)
        return pools

    def run(self, block_size=None, tile=1, window=None):
        """o_TQD through the C kernel."""
        keys, values, view = self.placed(block_size, tile)
        o_TQD = torch.full_like(self.q_TQD, torch.nan)
        prefill.prefill_all(self.function, self.q_TQD, keys, values, o_TQD, view, 1, self.scale, window)
        return o_TQD

    @property
    def function(self):
        dtype, head_dim, _, groups = self.shape
        found = prefill.kernel(dtype, head_dim, groups)
        assert found is not None
        return found

    def truth(self, window=None):
        keys, values, view = self.placed(None, 1)
        return truth(self.q_TQD, keys, values, view, self.scale, window)


def assert_close(result, expected, tolerance=None):
    error = ((result.double() - expected).square().mean() / expected.square().mean()).sqrt().item()
    assert error < (tolerance or TOLERANCE[result.dtype]), f"relative RMS error {error:.1e}"


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", ALL)
def test_every_geometry_and_layout_gives_the_same_and_it_is_right(shape):
    case = Case(shape, PIECES)
    rows = case.run()
    assert_close(rows, case.truth())
    for block_size in (None, 1, 3, 16, 128):
        for tile in (1, 4, 16):
            assert torch.equal(case.run(block_size, tile), rows), f"block {block_size}, tile {tile}"


def test_shorter_pieces_are_left_alone():
    case = Case(SHAPES[0], PIECES)
    keys, values, view = case.placed(16, 1)
    o_TQD, expected = torch.full_like(case.q_TQD, 7.0), case.run(16)
    prefill.prefill_all(case.function, case.q_TQD, keys, values, o_TQD, view, 6, case.scale)
    stop = 0
    for _, new in PIECES:
        start, stop = stop, stop + new
        assert torch.equal(o_TQD[start:stop], expected[start:stop]) if new >= 6 else (o_TQD[start:stop] == 7.0).all()


@pytest.mark.parametrize("window", [1, 5, 64, 100])
@pytest.mark.parametrize("shape", SHAPES[::4], ids=NAMES[::4])
def test_a_window_hides_what_lies_before_it(shape, window):
    case = Case(shape, PIECES)
    assert_close(case.run(16, 16, window), case.truth(window))


def test_what_a_window_hides_is_not_even_read():
    case = Case(SHAPES[0], [(200, 40)])
    expected = case.run(window=50)
    case.kv[0][:, :64] = torch.nan  # the first query, at 160, sees from 111 on: tile 1 is the first one read
    assert torch.equal(case.run(window=50), expected)


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("shape", ALL)
def test_a_prompt_gives_the_same_however_it_is_cut(shape, window):
    whole = Case(shape, [(300, 300)])
    expected = whole.run(window=window)
    for cuts in ([0, 100, 109, 173, 300], [0, 1, 2, 64, 65, 299, 300], [0, 150, 300]):
        for start, stop in pairwise(cuts):
            piece = Case(shape, [(stop, stop - start)])
            piece.q_TQD, piece.kv = whole.q_TQD[start:stop], [whole.kv[0][:, :stop]]
            assert torch.equal(piece.run(16, window=window), expected[start:stop]), f"[{start}, {stop}) of {cuts}"


@pytest.mark.parametrize("shape", SHAPES[::4], ids=NAMES[::4])
def test_a_sequence_does_not_notice_the_others_nor_the_threads(shape, threads):
    case = Case(shape, PIECES)
    together = case.run(16)
    threads(2)
    assert torch.equal(case.run(16), together)
    first = 0
    for row, (length, new) in enumerate(PIECES):
        if new:
            alone = Case(shape, [(length, new)])
            alone.q_TQD, alone.kv = case.q_TQD[first : first + new], [case.kv[row]]
            assert torch.equal(alone.run(16), together[first : first + new])
        first += new


@pytest.mark.parametrize("which", [0, 1], ids=["key", "value"])
@pytest.mark.parametrize("shape", SHAPES[::4], ids=NAMES[::4])
def test_poison_in_a_token_shows_in_those_that_see_it_alone(shape, which):
    """The control for every NaN in a slot of nobody, and that no query sees a later token.

    Up to five rows share a group with the token; a value of theirs that is no number would show, as a key does not.
    """
    case = Case(shape, [(150, 100)])
    case.kv[0][which, 120] = torch.nan
    o_TQD = case.run(16)
    assert o_TQD[120 - 50 :].isnan().any(-1).all()
    assert not o_TQD[: 120 - 50 - (5 if which else 0)].isnan().any()


def test_large_scores_do_not_overflow():
    case = Case(SHAPES[0], [(129, 129), (200, 30)])
    case.q_TQD *= 300
    assert_close(case.run(), case.truth(), 1e-5)  # scores of 1,000 are known to 1e-4 in float32, in torch too


@pytest.mark.slow
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_instruction_set_is_right(dtype, instructions, compiled_for):
    compiled_for(instructions)
    case = Case((dtype, 80, 2, 3), PIECES)
    rows = case.run()
    assert_close(rows, case.truth())
    assert torch.equal(case.run(16, 16), rows)


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


def test_pools_have_whole_tiles():
    keys, _, _ = Case(SHAPES[2], [(5, 5)]).placed(None, 16)
    assert (keys.dim(), slots_in(keys) % 16) == (4, 0)
