"""Arrivals: all at 0, Poisson, as in the file."""

import numpy as np
import pytest

from kvlab.errors import UsageError
from kvlab.workload.make import make

FIXED = {"name": "fixed", "num_requests": 4000, "prompt_len": 4, "output_len": 2}
TIMED = "prompt_len,output_len,arrival_s\n4,2,10.5\n5,2,12\n6,2,16.25\n"


def arrivals(config):
    return [request.arrival_s for request in make(config, seed=0, max_len=64, vocab=None).requests]


@pytest.fixture
def timed(tmp_path):
    path = tmp_path / "timed.csv"
    path.write_text(TIMED)
    return {"name": "fixed", "path": str(path), "num_requests": None}


def test_all_at_0_by_default():
    assert set(arrivals(FIXED)) == {0.0}


def test_poisson_has_the_mean_and_the_spread_of_its_rate():
    gaps = np.diff(arrivals(FIXED | {"rate": 4.0}))
    # 4,000 exponential gaps: the mean strays by 1.6 % (one sigma), the coefficient of variation by about the same.
    assert gaps.mean() == pytest.approx(0.25, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.08)
    assert (gaps >= 0).all()


def test_poisson_starts_at_0_and_a_rate_only_stretches_it():
    slow, fast = arrivals(FIXED | {"rate": 1}), arrivals(FIXED | {"rate": 10, "arrivals": "poisson"})
    assert slow[0] == 0
    assert np.allclose(slow, np.array(fast) * 10)


def test_file_arrivals_start_at_0(timed):
    assert arrivals(timed | {"arrivals": "file"}) == [0.0, 1.5, 5.75]
    assert arrivals(timed | {"arrivals": "file", "time_scale": 2}) == [0.0, 3.0, 11.5]
    assert set(arrivals(timed)) == {0.0}


def test_file_rows_are_put_in_order_of_arrival(tmp_path):
    path = tmp_path / "mixed.csv"
    path.write_text("arrival_s,prompt_len,output_len\n9,1,1\n3,2,1\n5,3,1\n")
    config = {"name": "fixed", "path": str(path), "num_requests": 2, "arrivals": "file"}
    requests = make(config, seed=0, max_len=64, vocab=None).requests
    assert [(r.id, r.prompt_len, r.arrival_s) for r in requests] == [(0, 2, 0.0), (1, 3, 2.0)]


def test_random_rows_of_a_timed_file_stay_in_order_of_arrival(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("prompt_len,output_len,arrival_s\n" + "".join(f"{i + 1},1,{i}\n" for i in range(100)))
    config = {"name": "fixed", "path": str(path), "num_requests": 10, "arrivals": "file", "sample": "random"}
    requests = make(config, seed=0, max_len=200, vocab=None).requests
    assert [r.prompt_len for r in requests] == sorted(r.prompt_len for r in requests)
    assert [r.arrival_s for r in requests] == [r.prompt_len - requests[0].prompt_len for r in requests]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": 0}, "rate=0: allowed is a number above 0"),
        ({"rate": -1}, "rate=-1"),
        ({"rate": "fast"}, "rate=fast"),
        ({"rate": float("inf")}, "rate=inf"),
        ({"arrivals": "poisson"}, "arrivals=poisson: needs workload.rate"),
        ({"arrivals": "burst"}, "arrivals=burst: allowed are all_at_0, poisson, file"),
        ({"arrivals": "all_at_0", "rate": 2}, "rate=2: only arrivals=poisson"),
        ({"arrivals": "file"}, "arrivals=file: fixed, prompt 4, output 2 has no times"),
        ({"arrivals": "file", "rate": 2}, "rate=2: only arrivals=poisson"),
        ({"time_scale": 0.5}, "time_scale=0.5: only arrivals=file"),
        ({"rate": 1, "time_scale": 0}, "time_scale=0: allowed is a number above 0"),
    ],
)
def test_wrong_combinations(change, message):
    with pytest.raises(UsageError) as caught:
        arrivals(FIXED | change)
    assert str(caught.value).startswith(f"workload.{message}")


def test_file_arrivals_need_a_file_with_times(tmp_path):
    path = tmp_path / "untimed.csv"
    path.write_text("prompt_len,output_len\n1,1\n")
    with pytest.raises(UsageError, match=r"arrivals=file: untimed\.csv has no times"):
        arrivals({"name": "fixed", "path": str(path), "num_requests": 1, "arrivals": "file"})
