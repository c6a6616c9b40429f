"""Figures: that each draws what it says; how they look is for eyes."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.harness import figures
from kvlab.harness.groups import group
from kvlab.harness.results import load


def rows(directory):
    return group(load(directory)[0])


def test_bars_end_at_the_medians(sweep):
    (axes,) = figures.waste_bars(rows(sweep)).axes
    widths = np.array([[bar.get_width() for bar in container] for container in axes.containers])
    assert widths.T[1] == pytest.approx([90, 2, 1, 7])
    assert widths.sum(axis=0) == pytest.approx([100, 100, 100])


def test_maps_share_one_time_axis_and_fill_the_pool(sweep):
    table = rows(sweep)
    figure = figures.memory_maps(table)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    edges, shares = figures.over_time(figures.typical(table[0]))
    assert len(edges) == len(shares["internal"]) + 1
    assert edges[0] == pytest.approx(0)
    assert sum(shares[part] for part in figures.PARTS) == pytest.approx(np.ones(len(edges) - 1))


def test_typical_is_the_run_at_the_median(write_run):
    for seed, rate in enumerate((30.0, 10.0, 20.0)):
        path = write_run(f"r{seed}", seed=seed, tokens_per_s=rate)
    (row,) = rows(path.parent)
    assert figures.typical(row).seed == 2


def test_built_in_strategies_keep_their_colours_beside_others(write_run, sweep):
    write_run("n", "new")
    colours = figures.strategy_colours(rows(sweep))
    assert {name: colours[name] for name in figures.STRATEGIES} == figures.STRATEGIES
    assert colours["new"] not in figures.STRATEGIES.values()


def test_over_time_compares_one_setting_and_says_what_is_left_out(write_run, sweep):
    write_run("long", "paged", 0, {"max_len": 4096})
    shown, notes = figures.first_setting(rows(sweep))
    assert [row.short for row in shown] == ["contiguous", "paged", "vattention"]
    assert any("max_len 512" in note for note in notes)
