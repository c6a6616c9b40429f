"""Latencies: whose requests they are, and what is shown where rates were swept."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from kvlab.harness import curves, look
from kvlab.harness.groups import group
from kvlab.harness.results import load
from kvlab.record.files import REQUEST_COLUMNS


def rows(directory):
    return group(load(directory)[0])


def write_requests(path, times, columns=REQUEST_COLUMNS):
    """(first token, finish, tokens, branch) of requests that arrive at 1 s."""
    with (path / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for index, (first, finish, tokens, branch) in enumerate(times):
            line = dict.fromkeys(REQUEST_COLUMNS, "")
            line |= {"id": index, "arrival_s": 1.0, "first_token_s": first, "finish_s": finish, "output_len": tokens}
            writer.writerow(line | {"prompt_len": 4, "preemptions": 0, "branch": branch})


def steps_of(axes):
    return [(line.get_xdata()[1:].tolist(), line.get_ydata()[1:].tolist()) for line in axes.lines]


def test_distributions_are_of_the_finished_requests_of_all_seeds(write_run):
    write_requests(write_run("a", "paged", 0), [(1.5, 2.5, 5, 0), ("", "", 0, 0), (1.5, 3.5, 5, 1)])
    write_requests(write_run("b", "paged", 1), [(3.0, 3.0, 1, 0)])
    table = rows(write_run("c", "contiguous", 0).parent)
    figure = curves.latencies(table, look.row_colours(table))
    first, later = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["time to first token", "time per output token"]
    assert steps_of(first) == [([0.5, 2.0], [0.5, 1.0])]
    assert steps_of(later) == [([0.25, 0.5], [0.5, 1.0])]


def test_requests_of_runs_before_branches_are_read_too(write_run):
    path = write_run("a")
    write_requests(path, [(2.0, 3.0, 2, 0)], [name for name in REQUEST_COLUMNS if name != "branch"])
    table = rows(path)
    assert steps_of(curves.latencies(table, look.row_colours(table)).axes[0]) == [([1.0], [1.0])]


def test_without_requests_there_is_no_distribution(write_run):
    table = rows(write_run("a"))
    assert curves.latencies(table, look.row_colours(table)) is None


def test_rates_make_a_curve_of_medians_for_each_way_of_managing_memory(write_run):
    for rate in (1.0, 2.0):
        for seed, latency in enumerate((0.2, 0.3, 0.9)):
            for name in ("contiguous", "paged"):
                path = write_run(
                    f"{name}-{rate}-{seed}", name, seed, {"workload": {"name": "lognormal", "rate": rate}},
                    normalized_latency_s={"mean": latency * rate, "p50": None, "p99": None},
                )  # fmt: skip
    table = rows(path.parent)
    figure, notes = curves.over_rates(table, look.row_colours(table))
    panel = figure.axes[0]
    assert notes == []
    lines = [container.lines[0] for container in panel.containers]
    assert [line.get_xdata().tolist() for line in lines] == [[1.0, 2.0]] * 2
    assert [line.get_ydata().tolist() for line in lines] == [pytest.approx([0.3, 0.6])] * 2
    bars = [np.array(container.lines[2][0].get_segments())[:, :, 1] for container in panel.containers]
    assert bars[0] == pytest.approx(np.array([[0.2, 0.9], [0.4, 1.8]]))


def test_where_rates_were_not_varied_there_is_no_curve(sweep):
    assert curves.over_rates(rows(sweep), {}) == (None, [])
