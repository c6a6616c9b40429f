"""What C cannot see of the memory that it is handed is looked at before: else it takes whatever lies there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.engine.kernels import Kvlab
from kvlab.kernels.attention import attend
from kvlab.kernels.write import write
from kvlab.memory.view import make_view


def view_of(new):
    stop = np.array([40, 20])
    return make_view(np.arange(6, dtype=np.int32).reshape(2, 3), stop - new, stop, 16)


@pytest.mark.parametrize("new", [1, 12])
@pytest.mark.parametrize("types", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_queries_of_another_type_than_the_pool_are_refused(types, new):
    """Its bytes were read as numbers of the queries' type, a float32 pool's as twice as many slots."""
    q_TQD, (k_SHD, v_SHD) = torch.randn(2 * new, 3, 64).to(types[0]), torch.randn(2, 96, 1, 64).to(types[1])
    with pytest.raises(AssertionError, match="queries have the pool's type"):
        attend(q_TQD, k_SHD, v_SHD, view_of(new), 0.125)


def test_a_launch_that_serves_one_type_does_not_serve_another():
    kernels, view = Kvlab(), view_of(1)
    q_TQD, pools = torch.randn(2, 3, 64), torch.randn(2, 96, 1, 64)
    assert kernels.attend(q_TQD, *pools, view, 0.125).isfinite().all()
    with pytest.raises(AssertionError, match="queries have the pool's type"):
        kernels.attend(q_TQD, *pools.bfloat16(), view, 0.125)


def test_slots_of_four_bytes_are_refused():
    """Two of them were taken for one, far behind the pool."""
    k_SHD, v_SHD = torch.zeros(2, 96, 1, 64)
    with pytest.raises(AssertionError, match="slots of 8 bytes"):
        write(k_SHD, v_SHD, torch.tensor([3, 4], dtype=torch.int32), *torch.ones(2, 2, 1, 64))
    assert not k_SHD.any()


@pytest.mark.parametrize("block_size", [None, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_launch_of_nobody_is_nothing(block_size, dtype):
    """No sequence, and sequences without a new token."""
    pools = torch.full((2, 32, 1, 64), torch.nan).to(dtype)
    nobody = make_view(np.zeros((0, 1), np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64), block_size)
    idle = make_view(np.zeros((2, 1), np.int32), np.array([5, 0]), np.array([5, 0]), block_size)
    for view in (nobody, idle):
        assert attend(torch.empty(0, 3, 64, dtype=dtype), *pools, view, 0.125).shape == (0, 3, 64)


def test_tables_of_any_kind_name_the_same_slots():
    """Of 8 bytes an entry, not packed, and with anything behind the last entry in use."""
    table, stop = np.array([[4, 2, 0], [1, 5, 0]], np.int32), np.array([40, 20])
    wide = np.full((2, 9), -1, np.int64)
    wide[:, ::2][:, :3] = table
    wide[1, 4] = -(2**31)
    q_TQD, pools = torch.randn(2, 3, 64), torch.randn(2, 96, 1, 64)
    o_TQD = attend(q_TQD, *pools, make_view(table, stop - 1, stop, 16), 0.125)
    assert torch.equal(attend(q_TQD, *pools, make_view(wide[:, ::2], stop - 1, stop, 16), 0.125), o_TQD)
