"""The two largest logits of a row, through C and through torch."""

from __future__ import annotations

import math

import pytest
import torch

from kvlab.kernels import best


@pytest.fixture(params=["c", "torch"])
def two(request, monkeypatch):
    if request.param == "torch":
        return lambda logits_NV: best._by_torch(logits_NV.clone())
    if best._function() is None:
        pytest.skip("needs a C compiler")
    return best.best_two


@pytest.mark.parametrize("size", [2, 15, 16, 17, 31, 257, 4096])
@pytest.mark.parametrize("rows", [1, 3])
def test_they_are_those_of_a_sorted_row(two, rows, size):
    logits_NV = torch.randn(rows, size, generator=torch.Generator().manual_seed(size))
    token_N, best_N, second_N = two(logits_NV)
    sorted_NV, order_NV = logits_NV.sort(dim=1, descending=True)
    assert torch.equal(token_N, order_NV[:, 0])
    assert torch.equal(best_N, sorted_NV[:, 0])
    assert torch.equal(second_N, sorted_NV[:, 1])


@pytest.mark.parametrize(("first", "second"), [(0, 1), (3, 19), (5, 40), (16, 32), (40, 41)])
def test_of_equals_the_first_one_and_no_gap(two, first, second):
    logits_NV = torch.full((1, 42), -2.0)
    logits_NV[0, [first, second]] = 1.5
    token_N, best_N, second_N = two(logits_NV)
    assert (int(token_N), float(best_N), float(second_N)) == (first, 1.5, 1.5)


@pytest.mark.parametrize("place", [0, 7, 16, 40])
def test_a_row_that_has_nan_says_so(two, place):
    logits_NV = torch.randn(3, 41)
    logits_NV[1, place] = math.nan
    _, best_N, _ = two(logits_NV)
    assert best_N.isnan().tolist() == [False, True, False]


def test_tokens_that_may_not_come_are_minus_infinity(two):
    logits_NV = torch.full((1, 20), -math.inf)
    logits_NV[0, 18] = -7.0
    token_N, best_N, second_N = two(logits_NV)
    assert (int(token_N), float(best_N), float(second_N)) == (18, -7.0, -math.inf)
