"""Inter-token latencies, one by one or in stretches."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.record.gaps import Gaps


def test_a_stretch_is_what_its_launches_are() -> None:
    rng = np.random.default_rng(0)
    ends, last = np.cumsum(rng.exponential(1.0, 5000)) + 1, rng.random(7)
    stretched, single = Gaps(), Gaps()
    stretched.stretch(last, ends)
    for before, end in zip([last, *[np.full(7, end) for end in ends]], ends, strict=False):
        single.add(end - before)
    assert stretched.spread() == single.spread()
    every = np.concatenate([ends[0] - last, np.repeat(np.diff(ends), 7)])
    spread = single.spread()
    assert spread["mean"] == pytest.approx(every.mean())
    assert spread["max"] == every.max()
    assert spread["p99"] == pytest.approx(np.percentile(every, 99), rel=0.02)


def test_nothing_came() -> None:
    assert Gaps().spread() == {"mean": None, "p50": None, "p99": None, "max": None}
