"""What becomes of the tokens of who gives way."""

from __future__ import annotations

import pytest

from kvlab.engine.axes import CostBased, Never, Recompute, Swap


@pytest.mark.parametrize(
    ("preemption", "answer"),
    [(Recompute(), "recompute"), (Swap(), "swap"), (Never(), "none")],
    ids=["recompute", "swap", "none"],
)
def test_each_says_one_thing(preemption, answer):
    assert {preemption.how(3, length, hit) for length, hit in ((1, 0), (500, 0), (500, 499))} == {answer}


def cost_based(**changed):
    """A token: 2 us to compute (10^6 parameters at 10^12 a second), 1 us to move both ways."""
    given = {"tflops": 1.0, "host_gb_s": 2.0, "copy_us": 0.0, "parameters": 10**6, "token_bytes": 1000}
    return CostBased(**(given | changed))


def test_the_faster_way_back_is_taken():
    assert cost_based().how(0, 100, 0) == "swap"
    assert cost_based(host_gb_s=0.5).how(0, 100, 0) == "recompute"


def test_what_a_cache_gives_back_is_not_computed():
    """A swap moves all tokens, a return computes those that no cache has."""
    assert [cost_based().how(0, 100, hit) for hit in (49, 50, 51)] == ["swap", "recompute", "recompute"]


def test_a_copy_has_a_price_of_its_own_which_short_sequences_do_not_earn():
    assert [cost_based(copy_us=50).how(0, length, 0) for length in (99, 101)] == ["recompute", "swap"]


@pytest.mark.parametrize("wrong", [{"tflops": 0}, {"host_gb_s": -1}, {"copy_us": -1}])
def test_what_cannot_be_is_said(wrong):
    with pytest.raises(ValueError, match="allowed are numbers above 0"):
        cost_based(**wrong)
