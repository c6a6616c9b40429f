"""Single queries through the C kernel: against the reference, and the same to the bit however they come."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from kvlab.kernels import compiler, decode
from kvlab.kernels.pool import put
from kvlab.kernels.reference import attend as truth
from kvlab.memory.view import make_view

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 6e-3}  # relative RMS
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
INSTRUCTIONS = {"native": None, "skylake-avx512": "avx512f", "haswell": "avx2", "x86-64": "sse2"}


class Case:
    """Sequences of random tokens with a query each; `placed` puts them into a pool of NaN wherever a table says."""

    def __init__(self, shape, lengths=LENGTHS):
        self.shape, generator = shape, torch.Generator().manual_seed(0)
        dtype, head_dim, heads, groups = shape
        self.scale, self.stop = head_dim**-0.5, np.array(lengths)
        self.kv, queries = [], []
        for length in lengths:
            queries.append(torch.randn(heads * groups, head_dim, generator=generator).to(dtype))
            self.kv.append(torch.randn(2, length, heads, head_dim, generator=generator).to(dtype))
        self.q_BQD = torch.stack(queries)

    def placed(self, block_size, tile):
        """Pools of keys and of values, and the view; block_size None: rows, one slot of nobody before each."""
        rng, stop = np.random.default_rng(1), self.stop
        if block_size is None:
            table, slots = (np.cumsum(stop + 1) - stop)[:, None].astype(np.int32), int((stop + 1).sum()) + 3
        else:
            count_B = -(-stop // block_size)
            slots = (int(count_B.sum()) + 3) * block_size
            table = rng.integers(-(2**31), 2**31 - 1, (len(stop), int(count_B.max()) + 2)).astype(np.int32)
            blocks = np.split(rng.permutation(int(count_B.sum()) + 3), np.cumsum(count_B))
            for row, of_row in enumerate(blocks[:-1]):
                table[row, : len(of_row)] = of_row
        return *self._pools(table, block_size, slots, tile), make_view(table, stop - 1, stop, block_size)

    def _pools(self, table, block_size, slots, tile):
        dtype, head_dim, heads, _ = self.shape
        size = (slots, heads, head_dim) if tile == 1 else (-(-slots // tile), heads, tile, head_dim)
        pools = torch.full((2, *size), torch.nan, dtype=dtype)
        for row, kv_2NHD in enumerate(self.kv):
            position = np.arange(kv_2NHD.shape[1])
            size = block_size or 1 << 30
            slot_N = table[row, position // size].astype(np.int64) * (block_size or 1) + position % size
            for pool, x_NHD in zip(pools, kv_2NHD, strict=True):
                put(pool, torch.from_numpy(slot_N), x_NHD)
        return pools

    def run(self, block_size=None, tile=1, window=None, function=None):
        k_pool, v_pool, view = self.placed(block_size, tile)
        return self.over(k_pool, v_pool, view, window, function)

    def over(self, k_pool, v_pool, view, window=None, function=None):
        dtype, head_dim, _, groups = self.shape
        function = function or decode.kernel(dtype, head_dim, groups)[0]
        o_BQD = torch.full_like(self.q_BQD, torch.nan)
        queries = decode.queries_of(view, 1)
        decode.decode(function, self.q_BQD, k_pool, v_pool, o_BQD, view, queries, self.scale, window)
        return o_BQD

    def check(self, o_BQD, window=None):
        k_pool, v_pool, view = self.placed(None, 1)
        expected_BQD = truth(self.q_BQD, k_pool, v_pool, view, self.scale, window)
        for length, o_QD, expected_QD in zip(self.stop, o_BQD.double(), expected_BQD, strict=True):
            error = ((o_QD - expected_QD).square().mean() / expected_QD.square().mean()).sqrt().item()
            assert error < TOLERANCE[self.shape[0]], f"length {length}: relative RMS error {error:.1e}"


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", SHAPES)
def test_ragged_lengths_in_every_geometry_and_layout(shape):
    """One truth, and the same bits over rows, over shuffled blocks and in either layout; NaN in all other slots."""
    case = Case(shape)
    o_BQD = case.run()
    case.check(o_BQD)
    for block_size in (None, 1, 5, 16, 64):
        for tile in (1, 2, 16, 64):
            assert torch.equal(case.run(block_size, tile), o_BQD), f"block size {block_size}, tile {tile}"


@pytest.mark.parametrize("window", [1, 16, 17, 100, 900, 5000])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_window_leaves_older_tokens_alone(shape, window):
    """What is older may be NaN."""
    case = Case(shape)
    k_pool, v_pool, view = case.placed(None, 1)
    for start, length in zip(view.start_B.tolist(), case.stop, strict=True):
        for pool in (k_pool, v_pool):
            pool[start : start + max(0, length - window)] = torch.nan
    o_BQD = case.over(k_pool, v_pool, view, window)
    case.check(o_BQD, window)
    assert torch.equal(case.run(16, 16, window), o_BQD)


@pytest.mark.parametrize("lengths", [(1,), (300,), (3000,), (6000, 40)])
@pytest.mark.parametrize("shape", SHAPES)
def test_threads_share_a_sequence_and_change_nothing(shape, lengths, threads):
    """A long sequence is cut by its own length: it is the same with one thread, with more, and among others."""
    case = Case(shape, lengths)
    one = case.run()
    case.check(one)
    for count in (2, 3, 16):
        threads(count)
        assert torch.equal(case.run(), one), f"{count} threads"
    more = Case(shape, (*lengths, *[20] * 99))  # so many that none is cut
    assert torch.equal(more.run(16)[: len(lengths)], one)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_instruction_set(shape, instructions, monkeypatch, tmp_path):
    """What other machines compile, here: AVX-512 without dot products of bfloat16, AVX2, and neither."""
    needed = INSTRUCTIONS[instructions]
    if needed and needed not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this CPU has no {needed}")
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-Werror", f"-march={instructions}"))
    function, name = decode.kernel.__wrapped__(shape[0], shape[1], shape[3])
    assert name == "c"
    case = Case(shape)
    o_BQD = case.run(function=function)
    case.check(o_BQD)
    assert torch.equal(case.run(16, 16, function=function), o_BQD)


def test_scores_far_apart_and_rising():
    """The maximum that weights are relative to rises late and by leaps; what came before then counts for nothing."""
    for dtype, tolerance in TOLERANCE.items():
        case = Case((dtype, 64, 3, 3), (100, 300))
        for kv_2NHD in case.kv:
            kv_2NHD[0] *= torch.linspace(0, 40, kv_2NHD.shape[1], dtype=dtype)[:, None, None]
        k_pool, v_pool, view = case.placed(None, 1)
        expected_BQD = truth(case.q_BQD, k_pool, v_pool, view, case.scale)
        error = (case.run().double() - expected_BQD).square().mean() / expected_BQD.square().mean()
        assert error.sqrt() < 20 * tolerance  # scores of 100 and more are rounded themselves


def test_many_tokens_under_one_maximum():
    """Equal scores: each weight is the same, and 6,000 of them add up to the mean."""
    case = Case((torch.float32, 64, 1, 1), (6000,))
    case.kv[0][0] = 0
    assert torch.allclose(case.run()[0, 0], case.kv[0][1].mean(0)[0], atol=1e-6)


@pytest.mark.parametrize("head_dim", [7, 14])
def test_head_sizes_without_a_kernel_are_named(head_dim):
    """Heads that no lanes divide go through torch."""
    decode.kernel.cache_clear()
    function, name = decode.kernel(torch.bfloat16, head_dim, 1)
    assert function is None
    assert "HEAD_DIM is no multiple of 2, or of 4 in bfloat16" in name
