"""What each forecast expects of a request, and what it may know."""

from __future__ import annotations

import pytest

from kvlab.engine.axes import Limit, Oracle, Pow2, Quantile
from kvlab.errors import UsageError
from kvlab.request import Request


def request(prompt: int, output: int | None, limit: int = 1000) -> Request:
    return Request(0, prompt, output, limit)


@pytest.mark.parametrize(
    ("forecast", "expected"), [(Limit(), 1000), (Pow2(), 100 + 32), (Oracle(), 125)], ids=["limit", "pow2", "oracle"]
)
def test_each_expects_what_it_is_called_after(forecast, expected):
    assert forecast.expect(request(100, 25)) == expected


def test_a_power_of_two_never_exceeds_the_limit():
    assert Pow2().expect(request(100, 33, limit=140)) == 140


@pytest.mark.parametrize("forecast", [Pow2(), Oracle()], ids=["pow2", "oracle"])
def test_what_only_a_trace_knows_is_not_made_up(forecast):
    with pytest.raises(UsageError, match="allowed here is limit or quantile"):
        forecast.expect(request(100, None))


def test_a_quantile_expects_the_limit_until_enough_are_done():
    forecast = Quantile(share=0.5, least=3)
    for output in (10, 20):
        forecast.learn(request(100, output), output)
    assert forecast.expect(request(100, 7)) == 1000
    forecast.learn(request(100, 30), 30)
    assert forecast.expect(request(100, 7)) == 120


def test_a_quantile_is_that_of_the_outputs_done_last():
    forecast = Quantile(share=0.9, window=10, least=1)
    for output in [500] * 10 + list(range(1, 11)):
        forecast.learn(request(100, output), output)
    assert forecast.expect(request(100, None)) == 110
    assert forecast.expect(request(100, None, limit=105)) == 105


def test_a_quantile_does_not_look_at_what_it_forecasts():
    forecast = Quantile(least=1)
    forecast.learn(request(1, 50), 50)
    assert forecast.expect(request(100, 3)) == forecast.expect(request(100, 700)) == 150


@pytest.mark.parametrize("arguments", [{"share": 1.1}, {"least": 0}, {"window": 5, "least": 6}])
def test_what_cannot_be_is_said(arguments):
    with pytest.raises(ValueError, match="allowed"):
        Quantile(**arguments)
