"""Long runs: what is kept of them is as good as what was thrown away says it should be."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kvlab.engine.scheduler import Tally
from kvlab.engine.sequence import Sequence
from kvlab.record.goodput import Slo
from kvlab.record.outcomes import Outcomes
from kvlab.record.series import ROWS, Everything, Series, Thinned
from kvlab.record.summary import work_metrics
from kvlab.request import Request
from kvlab.sketch import ERROR, Sketch

DRAWS = {
    "lognormal": lambda rng: rng.lognormal(0, 3, 20_000),
    "exponential": lambda rng: rng.exponential(1e-4, 3000),
    "constant": lambda rng: np.full(7, 3.0),
    "with zeros": lambda rng: np.maximum(0, rng.normal(0, 1, 5000)),
    "all zero": lambda rng: np.zeros(5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_sketch_is_as_exact_as_it_says(name):
    values = DRAWS[name](np.random.default_rng(0))
    sketch = Sketch()
    for part in np.array_split(values, 7):
        sketch.add(part)
    for share in (0.001, 0.3, 0.5, 0.9, 0.99, 1.0):
        true = np.percentile(values, 100 * share, method="inverted_cdf")
        assert sketch.quantile(share) == pytest.approx(true, rel=ERROR * 1.0001, abs=1e-9)
    assert sketch.spread()["mean"] == pytest.approx(values.mean())
    assert len(sketch.buckets) < 4000


def test_a_sketch_of_nothing():
    assert Sketch().spread() == {"mean": None, "p50": None, "p99": None}


def averaged(pair_N2C):
    """Column 0 counts, the rest are means weighted by it."""
    count = pair_N2C[:, :, :1]
    return np.concatenate((count.sum(1), (pair_N2C[:, :, 1:] * count).sum(1) / count.sum(1)), axis=1)


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 1000, 3 * ROWS + 5])
def test_thinned_rows_are_few_and_lose_no_sum(rows):
    thinned, everything = Thinned(16, averaged), Everything()

    def both(block):
        thinned.add(block)
        everything.add(block)

    series, rng = Series(3, both), np.random.default_rng(rows)
    data = np.column_stack((np.ones(rows), np.arange(rows), rng.random(rows)))
    cut = rows // 3
    series.extend(data[:cut])
    for row in data[cut : cut + 3]:
        series.append(row)
    series.extend(data[cut + 3 :])
    series.flush()
    assert np.array_equal(everything.rows(3), data)
    kept = thinned.rows(3)
    assert len(kept) <= 16
    assert len(kept) == rows if rows <= 16 else len(kept) >= 8
    assert kept[:, 0].sum() == rows
    assert (np.diff(kept[:, 1]) > 0).all()
    assert (kept[:, :1] * kept[:, 1:]).sum(0) == pytest.approx(data[:, 1:].sum(0))


def ended(id, rng):
    request = Request(id, int(rng.integers(1, 50)), int(rng.integers(1, 50)), 200, float(id) / 7 + 1)
    sequence = Sequence(request, request.prompt_len + request.output_len, preemptions=id % 3)
    sequence.outcome = "failed" if id % 50 == 3 else "finished"
    if sequence.outcome == "finished":
        sequence.first_token_s = request.arrival_s + float(rng.exponential())
        sequence.finish_s = sequence.first_token_s + float(rng.exponential())
    return sequence


@pytest.mark.parametrize("count", [0, 1, 4, 9000])
def test_outcomes_say_what_the_summary_of_all_of_them_says(count):
    rng, written, slo = np.random.default_rng(1), [], Slo(1.0, 0.05)
    tally, outcomes = (
        Tally(preemptions=5, recomputed_tokens=7, hit_tokens=1, input_tokens=4),
        Outcomes(SimpleNamespace(one=written.append), 10, slo),
    )
    for id in range(count):
        tally.ended.append(ended(id, rng))
        outcomes.add(tally.ended[-1])
    exact, streamed = work_metrics(tally, 3, count + 2, slo), outcomes.metrics(tally, 3, count + 2)
    assert written == tally.ended[:10]
    assert streamed.pop("quantile_error") == ERROR
    assert streamed.keys() == exact.keys()
    for key, value in exact.items():
        if isinstance(value, dict) and value["mean"] is not None:
            assert streamed[key]["mean"] == pytest.approx(value["mean"])
            assert streamed[key]["p99"] == pytest.approx(value["p99"], rel=0.02)  # of another definition of percentile
        else:
            assert streamed[key] == pytest.approx(value)
