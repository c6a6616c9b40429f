"""A workload made as it is needed is the workload."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.engine.arrivals import AHEAD, Came
from kvlab.workload.make import make
from kvlab.workload.stream import describe, stream

BASE = {"num_requests": 3000, "path": None, "sample": "head", "arrivals": None, "rate": None, "time_scale": 1.0,
        "scale": 1.0, "max_tokens": None}  # fmt: skip
NODES = {
    "fixed": {"name": "fixed", "prompt_len": 30, "output_len": 12},
    "lognormal": {"name": "lognormal", "mu": 5.5, "sigma": 0.9, "cap": None, "prompt_share": 0.5, "rate": 3.0},
    "refused": {"name": "uniform", "prompt_len": {"min": 1, "max": 400}, "output_len": {"min": 1, "max": 300}},
    "listed": {"name": "listed", "lengths": [[3, 5], [400, 130], [9, 1]] * 1000},
    "sharegpt": {"name": "sharegpt", "scale": 0.3, "max_tokens": 50, "rate": 7.5},
}


@pytest.mark.parametrize("vocab", [None, 97])
@pytest.mark.parametrize("name", NODES)
def test_the_requests_are_the_same(name, vocab):
    node = BASE | NODES[name]
    whole = make(node, seed=4, max_len=512, vocab=vocab)
    streamed = stream(node, seed=4, max_len=512, vocab=vocab)
    requests = list(streamed.requests())
    seen = [(r.id, r.prompt_len, r.output_len, r.limit, r.arrival_s) for r in requests]
    assert seen == [(r.id, r.prompt_len, r.output_len, r.limit, r.arrival_s) for r in whole.requests]
    if vocab is not None:
        assert all(np.array_equal(a.prompt, b.prompt) for a, b in zip(requests, whole.requests, strict=True))
    assert list(streamed.times()) == [r.arrival_s for r in whole.requests]
    assert streamed.least_limit <= min(r.limit for r in requests)
    assert name != "refused" or whole.refused
    info = streamed.about | streamed.lengths.summary()
    for key in ("num_requests", "num_refused", "total_tokens", "name", "source", "arrivals", "rate_per_s"):
        assert info[key] == whole.info[key]
    for key in ("prompt_tokens", "output_tokens"):
        assert info[key]["mean"] == pytest.approx(whole.info[key]["mean"])
        assert info[key]["p99"] == pytest.approx(whole.info[key]["p99"], rel=0.006)
    assert describe(streamed).startswith(f"{node['name']} (")


def test_a_file_is_streamed_too(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("prompt_len,output_len\n" + "".join(f"{n},{n + 1}\n" for n in range(1, 9)))
    node = BASE | {"name": "file", "path": str(path), "num_requests": None}
    streamed = stream(node, seed=0, max_len=12, vocab=None)
    assert [(r.prompt_len, r.output_len) for r in streamed.requests()] == [(n, n + 1) for n in range(1, 6)]
    assert (streamed.num_requests, streamed.lengths.refused, streamed.about["num_requests"]) == (8, 3, 8)


@pytest.mark.parametrize("gap", [0.0, 0.001, 1.0])
def test_who_has_come_is_counted_from_times_alone(gap):
    times = (np.arange(3 * AHEAD + 7) * gap).tolist()
    came, now = Came(iter(times)), 0.0
    for step in (0.5 * gap, 0.0, 700.2 * gap, 3 * AHEAD * gap, 1.0):
        moments = now + step * np.array([0.0, 0.5, 1.0])
        assert came.by_each(moments).tolist() == [sum(time <= moment for time in times) for moment in moments]
        now = float(moments[-1])
        assert came.by(now) == sum(time <= now for time in times)
        assert len(came._time_N) <= 4 * AHEAD + 7
