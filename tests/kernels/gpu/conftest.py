"""Kernels of the GPU under Triton's interpreter where there is no GPU, and natively where there is one."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import warnings
from contextlib import ExitStack, closing

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a module with kernels is imported

from kvlab.kernels.gpu.geometry import make_view
from kvlab.kernels.reference import attend as truth
from kvlab.memory import view as host
from kvlab.memory.host_vmm import PhysicalPool, Reservation, round_up

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}  # relative RMS


class Case:
    """Sequences whose slots are scattered as rows and as blocks; whatever nobody owns holds NaN or is wrong.

    The stores are a slice of stores of several layers, as where all layers of a token lie together.
    """

    def __init__(
        self,
        device,
        lengths,
        new=None,
        *,
        dtype=torch.float32,
        head_dim=64,
        kv_heads=2,
        groups=2,
        block_size=16,
        layers=1,
        seed=0,
    ):
        rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        self.block_size, self.scale = block_size, head_dim**-0.5
        self.stop_B = np.array(lengths)
        self.start_B = self.stop_B - np.array(new if new is not None else [1] * len(lengths))
        self.device, self.tokens = device, int((self.stop_B - self.start_B).sum())
        count_B = -(-self.stop_B // block_size)
        order = iter(rng.permutation(int(count_B.sum()) + 3).tolist())
        self.table_BP = rng.integers(-(2**31), 2**31 - 1, (len(lengths), int(count_B.max()) + 2)).astype(np.int32)
        for row, count in enumerate(count_B):
            self.table_BP[row, :count] = [next(order) for _ in range(count)]
        first_B = rng.permutation(len(lengths)) * (int(self.stop_B.max()) + 1) + 3  # rows end with a slot of nobody
        self.row_B1 = first_B[:, None].astype(np.int32)
        self.q_TQD = torch.randn(self.tokens, kv_heads * groups, head_dim, generator=generator).to(device, dtype)
        slots = {"flat": len(lengths) * (int(self.stop_B.max()) + 1) + 3}
        slots["paged"] = (int(count_B.sum()) + 3) * block_size
        self.flat, self.paged = (
            [
                torch.full((slots[name], layers, kv_heads, head_dim), torch.nan, dtype=dtype, device=device)[:, -1]
                for _ in range(2)
            ]
            for name in ("flat", "paged")
        )
        self.host_rows = host.make_view(self.row_B1, self.start_B, self.stop_B, None)
        self.host_blocks = host.make_view(self.table_BP, self.start_B, self.stop_B, block_size)
        for index, length in enumerate(lengths):
            row_N, block_N = (host.slots_of(view, index).to(device) for view in (self.host_rows, self.host_blocks))
            for flat, paged in zip(self.flat, self.paged, strict=True):
                x_NHD = torch.randn(length, kv_heads, head_dim, generator=generator).to(device, dtype)
                flat[row_N] = x_NHD
                paged[block_N] = x_NHD
        self.rows = make_view(self.row_B1, self.start_B, self.stop_B, None, device)
        self.blocks = make_view(self.table_BP, self.start_B, self.stop_B, block_size, device)

    def truth(self, window=None):
        """o_TQD in float64, on the host."""
        q_TQD, k_SHD, v_SHD = (x.cpu() for x in (self.q_TQD, *self.flat))
        return truth(q_TQD, k_SHD, v_SHD, self.host_rows, self.scale, window)


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def make_case(device):
    """Case(lengths, new, dtype=..., ...): see there."""
    return lambda *arguments, **options: Case(device, *arguments, **options)


@pytest.fixture
def assert_close():
    """The relative RMS error against the truth, with a name."""

    def check(o_TQD, expected, what):
        error = ((o_TQD.cpu().double() - expected).square().mean() / expected.square().mean()).sqrt().item()
        limit = TOLERANCE[o_TQD.dtype]
        assert error < limit, f"{what}: relative RMS error {error:.1e}, allowed is {limit:.0e}"

    return check


@pytest.fixture
def ending():
    """0, or minus the signal that killed a fork of this process which ran `code`: it may touch what is not there."""

    def run(code):
        def quietly():
            faulthandler.disable()  # the death is wanted
            code()

        child = multiprocessing.get_context("fork").Process(target=quietly)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads; it runs on one
            child.start()
        child.join()
        return child.exitcode

    return run


@pytest.fixture
def reserved(device):
    """Stores of float16 over reserved addresses, of which only some slots, whole pages of them, have memory."""
    if device != "cpu":
        pytest.skip("host memory is for interpreted kernels; on a GPU the virtual store's own tests do this")
    with ExitStack() as opened:

        def make(slots, mapped, layers, heads, head_dim):
            """k_SHD, v_SHD of the last layer of several that lie side by side."""
            slot_bytes = layers * heads * head_dim * 2
            pool = opened.enter_context(closing(PhysicalPool(2 * sum(b - a for a, b in mapped) * slot_bytes)))
            kv, used = [], 0
            for _ in range(2):
                place = opened.enter_context(closing(Reservation(round_up(slots * slot_bytes))))
                kv.append(place.tensor(torch.float16, (slots, layers, heads, head_dim)))
                for first, stop in mapped:
                    place.map(first * slot_bytes, pool, used, (stop - first) * slot_bytes)
                    used += (stop - first) * slot_bytes
                    kv[-1][first:stop].normal_()
            return [kv_SLHD[:, -1] for kv_SLHD in kv]

        yield make
