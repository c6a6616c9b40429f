"""Reading memory in C: every whole word counts, whoever shares the work."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from kvlab.kernels.stream import stream

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(params=[1, 2])
def _threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("lines", [0, 1, 3, 4, 9, 1001])
@pytest.mark.usefixtures("_threads")
def test_every_line_is_read_once(lines):
    words = np.random.default_rng(lines).integers(0, 2**63, 8 * lines)
    assert stream(torch.from_numpy(words)) == int(np.bitwise_xor.reduce(words))
