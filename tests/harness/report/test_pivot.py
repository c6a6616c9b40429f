"""Tables over several directories: pivots with their holes named, comparisons pair by pair, and what is refused."""

from __future__ import annotations

import argparse
import csv
import io
import json

import numpy as np
import pytest

from kvlab.errors import UsageError
from kvlab.harness import pivot, report, versus
from kvlab.harness.choose import where
from kvlab.harness.results import load
from kvlab.harness.sheet import Sheet
from kvlab.harness.stats import estimate


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    return report.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def blocks(write_run):
    """contiguous, which has no blocks, and paged with three sizes, of which one lacks a seed and one was refused."""
    for seed in (0, 1, 2):
        write_run(f"c{seed}", "contiguous", seed, {"block_size": None})
        write_run(f"p8-{seed}", "paged", seed, {"block_size": 8}, tokens_per_s=100.0 + 10 * seed)
        path = write_run(f"p16-{seed}", "paged", seed, {"block_size": 16}, tokens_per_s=200.0 + 10 * seed)
    write_run("p32", "paged", 0, {"block_size": 32}, status="refused", reason="no request fits")
    write_run("p16-3", "paged", 3, {"block_size": 16}, status="failed", reason="the disk is full")
    write_run("radix", "radix", 0, {"block_size": 8}, tokens_per_s=None)
    return path.parent


def test_cells_have_their_medians_and_holes_their_names(blocks):
    table = pivot.pivot(load(blocks)[0], ["strategy"], ["block_size"], "tokens_per_s")
    states = {row[0]: [cell.state for cell in line.values()] for row, line in table.cells.items()}
    assert table.columns == [(8,), (16,), (32,), (None,)]
    assert states == {
        "contiguous": ["n/a", "n/a", "n/a", "ok"],
        "paged": ["ok", "ok", "refused", "n/a"],
        "radix": ["not reported", "missing", "missing", "n/a"],
    }
    text = pivot.sheet(table).markdown()
    (line,) = [line for line in text.splitlines() if line.startswith("| paged")]
    assert "| 110 [100-120] |" in line
    assert "[least-most] of n = 3 seeds" in text
    assert "refused [2]" in line
    assert "[1] paged, block_size 16: failed (seed 3): the disk is full" in text
    assert "[2] paged, block_size 32: refused (seed 0): no request fits" in text


def test_every_cell_is_a_line_of_the_csv(blocks):
    table = pivot.pivot(load(blocks)[0], ["strategy"], ["block_size"], "tokens_per_s")
    lines = list(csv.DictReader(io.StringIO(pivot.to_csv(table))))
    assert len(lines) == 12
    (line,) = [line for line in lines if line["strategy"] == "paged" and line["block_size"] == "16"]
    assert [line[key] for key in ("median", "least", "most", "n", "state")] == ["210.0", "200.0", "220.0", "3", "ok"]
    assert line["reason"] == "failed (seed 3): the disk is full"


def test_runs_that_differ_in_something_else_are_not_averaged(blocks):
    with pytest.raises(UsageError, match=r"would mix runs that differ in block_size .*--where block_size=VALUE"):
        pivot.pivot(load(blocks)[0], ["strategy"], [], "tokens_per_s")
    chosen = where(load(blocks)[0], ["block_size=16,null", "seed=0,1"])
    table = pivot.pivot(chosen, ["strategy"], [], "tokens_per_s")
    assert pivot.sheet(table).body == [["contiguous", "100.5 [100.0-101.0]"], ["paged", "205.0 [200.0-210.0]"]]


def test_what_is_no_axis_or_metric_is_one_line(sweep):
    with pytest.raises(UsageError, match=r"strateg: no configuration key .*did you mean strategy\?"):
        call(sweep, "--rows", "strateg")
    with pytest.raises(UsageError, match=r"--value token_per_s: no metric .*did you mean tokens_per_s\?"):
        call(sweep, "--rows", "strategy", "--value", "token_per_s")
    with pytest.raises(UsageError, match="no run is left; max_len is 512"):
        call(sweep, "--where", "max_len=7")
    with pytest.raises(UsageError, match="--cols: allowed with --rows only"):
        call(sweep, "--cols", "strategy")
    with pytest.raises(UsageError, match="--rows and --against: they make different tables"):
        call(sweep, "--rows", "strategy", "--against", sweep)


def test_a_size_is_chosen_as_it_is_typed(sweep):
    runs = load(sweep)[0]
    assert len(where(runs, ["page_group_bytes=64KiB"])) == len(where(runs, ["page_group_bytes=65536"])) == 3


def test_simulated_and_measured_are_mixed_only_when_told(write_run, sweep, capsys):
    write_run("there", "paged", 0, {"gpu": {"name": "h100"}, "executor": "simulated"}, simulated=True)
    for words in ([], ["--rows", "strategy,gpu"], ["--rows", "strategy,gpu", "--value", "utilization"]):
        with pytest.raises(UsageError, match="1 of 10 runs are simulated, the others measured: .*--mix"):
            call(sweep, *words)
    assert call(sweep, "--rows", "strategy,gpu", "--mix") == 0
    assert "(s) Simulated" in capsys.readouterr().out


def test_flagged_timings_are_mixed_only_when_told_and_where_no_time_is_shown(write_run, sweep, capsys):
    write_run("noisy", "paged", 3, {"block_size": 16}, timing_valid=False)
    for words in ([], ["--rows", "strategy"], ["--against", sweep]):
        with pytest.raises(UsageError, match=r"\d+ of [12]0 runs have timings that are not to be used .*noisy.*--mix"):
            call(sweep, *words)
    assert call(sweep, "--rows", "strategy", "--value", "utilization") == 0
    assert call(sweep, "--rows", "strategy", "--where", "timing_valid=true") == 0
    capsys.readouterr()
    assert call(sweep, "--rows", "strategy", "--mix") == 0
    assert capsys.readouterr().out.count("(*)") == 2


def test_a_sweep_of_flagged_timings_alone_mixes_nothing(write_run):
    assert call(write_run("a", timing_valid=False), "--rows", "strategy") == 0


def test_pairs_are_of_one_configuration_and_seed(write_run, tmp_path, capsys):
    for seed, (before, after) in enumerate(((100.0, 110.0), (1000.0, 1200.0), (10.0, 13.0))):
        write_run(f"before/p{seed}", "paged", seed, tokens_per_s=before)
        write_run(f"after/p{seed}", "paged", seed, tokens_per_s=after)
    write_run("after/p9", "paged", 9)
    old, new = tmp_path / "sweep/before", tmp_path / "sweep/after"
    (line,) = versus.versus(load(new)[0], load(old)[0], ["tokens_per_s"]).lines
    assert line.ratio.median == pytest.approx(1.2)
    assert line.ratio.interval == pytest.approx((1.1, 1.3))
    assert call(new, "--against", old, "--value", "tokens_per_s") == 0
    assert "1 of 4 runs here have no partner: p9" in capsys.readouterr().out
    (row,) = csv.DictReader((new / "against.csv").read_text().splitlines())
    assert (float(row["ratio"]), row["n"]) == (pytest.approx(1.2), "3")


def test_sweeps_that_differ_on_purpose_are_compared_when_told_in_what(write_run, tmp_path):
    for seed in (0, 1):
        write_run(f"a/{seed}", "contiguous", seed)
        write_run(f"b/{seed}", "paged", seed)
    here, there = load(tmp_path / "sweep/b")[0], load(tmp_path / "sweep/a")[0]
    with pytest.raises(UsageError, match=r"they differ in strategy \(--ignoring leaves"):
        versus.versus(here, there)
    lines = versus.versus(here, there, ["utilization"], ["strategy"]).lines
    assert [line.ratio.median for line in lines] == pytest.approx([9.0])


def test_several_directories_are_one_table_and_go_where_told(write_run, tmp_path, capsys):
    write_run("a/x", "paged", 0)
    write_run("b/y", "paged", 1)
    a, b, out = tmp_path / "sweep/a", tmp_path / "sweep/b", tmp_path / "out"
    assert call(a, b, "--rows", "strategy", "--json") == 0
    captured = capsys.readouterr()
    assert [line["n"] for line in json.loads(captured.out)] == ["2"]
    assert "--out DIR says where to" in captured.err
    assert call(a, b, "--rows", "strategy", "--out", out) == 0
    assert sorted(path.name for path in out.iterdir()) == ["pivot.csv", "pivot.md", "pivot.tex"]
    assert call(a, b, "--csv", tmp_path / "all.csv") == 0
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 3


def test_latex_takes_no_cell_for_an_argument_of_the_line_before():
    r"""A list as the first cell, `[8, 16]`, was read as the space that `\\` is to leave: TeX stopped."""
    lines = Sheet(["n"], [["[8, 16]"], ["*"], ["8"]], set(), []).latex("").splitlines()
    assert lines[lines.index(r"\midrule") + 1 :][:3] == [r"{}[8, 16] \\", r"{}* \\", r"8 \\"]


def test_latex_is_a_booktabs_table_with_every_character_escaped():
    body = [["a&b", "17.3 %"], ["x", "-"]]
    text = Sheet(["strategy_name", "share"], body, {"strategy_name"}, ["[1] 50% & more"]).latex("of `x_1`")
    assert r"\begin{tabular}{lr}" in text
    assert r"a\&b & 17.3~\% \\" in text
    assert r"x & -- \\" in text
    assert r"\footnotesize [1] 50\% \& more" in text
    assert r"\caption{of x\_1}" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]


def test_an_interval_is_the_same_each_time_and_no_wider_than_the_values():
    values = [3.0, 1.0, 2.0, 10.0, 5.0]
    first = estimate(values)
    assert estimate(values) == first
    assert (first.median, first.least, first.most, first.n) == (3.0, 1.0, 10.0, 5)
    assert first.least <= first.interval[0] < first.median < first.interval[1] <= first.most
    assert estimate([4.0]).interval is None


def test_an_interval_covers_the_median_as_often_as_it_says():
    """Of 25 draws of a known distribution: 95 % of the intervals hold its median, within what chance allows."""
    draws = np.random.default_rng(1).exponential(size=(200, 25))
    held = sum(low <= np.log(2) <= high for low, high in (estimate(line).interval for line in draws.tolist()))
    assert 0.88 * 200 <= held <= 200
