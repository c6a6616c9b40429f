"""experiment=paper_table: one command from nothing to a LaTeX table and figures."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kvlab.harness import cli
from kvlab.harness.compose import Composer

AXES = ("seed=", "preset=", "workload.rate=")


def test_it_compares_systems_at_several_rates_over_three_seeds() -> None:
    with Composer() as composer:
        lines = composer.expand(["experiment=paper_table"])
        config = composer.compose(lines[0]).config
    seeds, presets, rates = ({line for each in lines for line in each if line.startswith(name)} for name in AXES)
    assert len(lines) == len(presets) * len(rates) * len(seeds)
    assert (len(presets), len(seeds)) == (5, 3)
    assert len(rates) > 1
    assert config["executor"] == "simulated"


@pytest.mark.slow
def test_a_small_one_ends_with_a_table_for_a_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made"
    small = ["workload.num_requests=30", "preset=orca_max,vllm_v0", "workload.rate=2.0,4.0", "tracking=none"]
    assert cli.main(["sweep", "experiment=paper_table", *small, f"hydra.sweep.dir={made}"]) == 0
    table = (made / "table.tex").read_text()
    assert all(rule in table for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"orca\_max & buddy & 2.0"))
    assert "SIMULATED" in table
    figures = {path.name for path in (made / "figures").iterdir()}
    assert {"waste.png", "memory_maps.png", "rate_latency.png", "latency.png", "throughput.png"} <= figures
    with (made / "runs.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 12
    capsys.readouterr()
    words = ["--rows", "preset", "--cols", "workload.rate", "--value", "normalized_latency_s.mean", "--interval"]
    assert cli.main(["report", str(made), *words]) == 0
    assert "| orca_max |" in capsys.readouterr().out
    assert r"\bottomrule" in (made / "pivot.tex").read_text()
