"""Kernels compiled so that what C leaves undefined ends the process: overflow, shifts, alignment, bounds of arrays."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]

FLAGS = ("-O1", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
ATTEND = """
import sys
import numpy as np
import torch
from kvlab.kernels import compiler

compiler.FLAGS = (*compiler.FLAGS, *sys.argv[2:])
from kvlab.kernels.attention import attend, kernel_name
from kvlab.memory.view import make_view

dtype, size = getattr(torch, sys.argv[1]), 30.0
torch.set_num_threads(2)
assert kernel_name(dtype, 64, 3).startswith("c, ")
stop = np.array([1, 17, 70, 700, 4300])
for block_size in (None, 16, 100):
    table = np.zeros((5, 1), np.int32) if block_size is None else np.tile(np.arange(300, dtype=np.int32), (5, 1))
    for new in (np.ones(5, int), np.minimum(stop, 70)):
        k_pool, v_pool = (size * torch.randn(5000, 2, 64)).to(dtype), torch.randn(5000, 2, 64).to(dtype)
        q_TQD = (size * torch.randn(int(new.sum()), 6, 64)).to(dtype)
        o_TQD = attend(q_TQD, k_pool, v_pool, make_view(table, stop - new, stop, block_size), 0.125)
        assert o_TQD.isfinite().all()
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("instructions", ["native", "haswell", "x86-64"])
def test_attention_does_nothing_that_c_leaves_undefined(dtype, instructions):
    """Scores more than 2,000 below the highest overflowed a sum of integers on their way to a weight of nothing."""
    command = [sys.executable, "-c", ATTEND, dtype, *FLAGS, f"-march={instructions}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
