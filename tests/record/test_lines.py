"""Columns become the text that csv.writer makes of rows."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from kvlab.record.lines import lines, whole


@pytest.mark.parametrize("count", [0, 1, 2, 40])
@pytest.mark.parametrize("values", [1, 3, 10**6])
def test_the_text_is_that_of_the_csv_module(count, values):
    """Of columns that stay the same for long, and of others."""
    rng = np.random.default_rng(count)
    whole_N, float_N = rng.integers(-values, values, count), rng.integers(0, values, count) / 7
    float_N[rng.random(count) < 0.2] = np.nan
    file = io.StringIO()
    rows = zip(whole_N.tolist(), [None if x != x else x for x in float_N.tolist()], strict=True)
    csv.writer(file).writerows((*row, "finished", "") for row in rows)
    assert lines([whole_N, float_N, "finished", ""]) == file.getvalue()


def test_only_whole_numbers_become_integers():
    assert whole(np.array([1.0, -2.0, 2.0**50])).dtype == np.int64
    assert whole(np.array([1.0, 2.5])).tolist() == [1.0, 2.5]
