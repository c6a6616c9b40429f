"""Figures: that each draws what it says; how they look is for eyes."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.harness import figures, series
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
    edges, shares = series.over_time(series.one_seed(table)[0])
    assert len(edges) == len(shares["internal"]) + 1
    assert edges[0] == pytest.approx(0)
    assert sum(shares[part] for part in figures.PARTS) == pytest.approx(np.ones(len(edges) - 1))


def test_panels_show_runs_of_one_seed(write_run):
    """Each row's own median run was of another seed: panels side by side had served different requests."""
    for seed, (slow, fast) in enumerate(((3.0, 10.0), (1.0, 30.0), (2.0, 20.0), (2.5, 40.0))):
        path = write_run(f"c{seed}", "contiguous", seed, tokens_per_s=slow)
        if seed < 3:
            write_run(f"p{seed}", "paged", seed, tokens_per_s=fast)
    table = rows(path.parent)
    assert [run.seed for run in series.one_seed(table)] == [2, 2]
    assert "seed 2" in figures.memory_maps(table).axes[-1].get_xlabel()


def test_a_series_without_its_columns_is_left_out(write_run, sweep):
    (write_run("old", "other") / "steps.csv").write_text("step,time_s\n0,1.0\n")
    (write_run("new", "another") / "steps.csv").write_text(",".join(series.SERIES) + "\n")
    shown, _ = series.first_setting(rows(sweep))
    assert [row.short for row in shown] == ["contiguous", "paged", "vattention"]


def test_built_in_strategies_keep_their_colours_beside_others(write_run, sweep):
    write_run("n", "new")
    colours = figures.strategy_colours(rows(sweep))
    assert {name: colours[name] for name in figures.STRATEGIES} == figures.STRATEGIES
    assert colours["new"] not in figures.STRATEGIES.values()


def test_over_time_compares_one_setting_and_says_what_is_left_out(write_run, sweep):
    write_run("long", "paged", 0, {"max_len": 4096})
    shown, notes = series.first_setting(rows(sweep))
    assert [row.short for row in shown] == ["contiguous", "paged", "vattention"]
    assert any("max_len 512" in note for note in notes)
