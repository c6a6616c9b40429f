"""Reading memory in C: every whole word counts, whoever shares the work."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from kvlab.kernels.stream import stream

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.mark.parametrize("lines", [0, 1, 3, 4, 9, 1001])
@pytest.mark.parametrize("count", [1, 2])
def test_every_line_is_read_once(lines, count, threads):
    threads(count)
    words = np.random.default_rng(lines).integers(0, 2**63, 8 * lines)
    assert stream(torch.from_numpy(words)) == int(np.bitwise_xor.reduce(words))
