"""The form of result.json, and the table with a row for each run."""

from __future__ import annotations

import csv
import io
import json

import pytest

from kvlab.harness.results import load
from kvlab.harness.schema import VERSION, problem
from kvlab.harness.tidy import tidy, to_csv


def test_what_a_run_writes_is_of_this_form(write_run):
    assert problem(json.loads((write_run("a") / "result.json").read_text())) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": VERSION + 1}, "schema_version 2; this kvlab reads 1 and is older than what wrote it"),
        ({"schema_version": None}, "schema_version None; this kvlab reads 1"),
        ({"status": "done"}, "status 'done', allowed is ok, refused, failed"),
        ({"tokens_per_s": "fast"}, "tokens_per_s 'fast', allowed is a number, 0 or more"),
        ({"utilization": 1.5}, "utilization 1.5, allowed is a number from 0 to 1"),
        ({"waste": {"internal": -0.5}}, "waste.internal -0.5, allowed is a number from 0 to 1"),
        ({"waste": 0.5}, "waste 0.5, allowed is an object"),
        ({"num_preemptions": True}, "num_preemptions True, allowed is a whole number, 0 or more"),
        ({"timing_valid": "yes"}, "timing_valid 'yes', allowed is true or false"),
        ({"overrides": "x" * 99}, "allowed is a list"),
    ],
)
def test_a_wrong_file_is_one_line_that_says_what_is_allowed(write_run, change, said):
    path = write_run("wrong", **change)
    (run,), (warning,) = load(path)
    assert said in warning
    assert "\n" not in warning
    assert (run.status, run.values) == ("failed", {})


def test_what_a_run_did_not_report_is_no_mistake(write_run):
    (run,), warnings = load(write_run("a", mean_batch_size=None, waste={"internal": None}, of_a_plugin={"x": "y"}))
    assert (run.status, warnings) == ("ok", [])


def test_a_row_for_each_run_with_every_axis_and_metric(write_run, sweep):
    write_run("broken", "paged", 9, {"block_size": 32}, status="failed", reason="the disk is full")
    runs = load(sweep)[0]
    lines = list(csv.DictReader(io.StringIO(to_csv(runs))))
    assert len(lines) == len(runs) == 10
    assert list(lines[0])[:6] == ["directory", "status", "reason", "seed", "strategy", "block_size"]
    paged = [line for line in lines if line["strategy"] == "paged" and line["status"] == "ok"]
    assert [(line["seed"], line["block_size"], line["tokens_per_s"]) for line in paged] == [
        ("0", "16", "900.0"), ("1", "16", "901.0"), ("2", "16", "902.0")
    ]  # fmt: skip
    assert {line["block_size"] for line in lines if line["strategy"] == "contiguous"} == {""}
    assert (lines[0]["status"], lines[0]["reason"]) == ("failed", "the disk is full")
    assert lines[1]["ttft_s.p99"] == "1.5"
    assert lines[1]["workload.num_requests"] == "32"


def test_cells_are_plain(write_run):
    (row,) = tidy(load(write_run("a", overrides=["strategy=paged", "workload.path=a b"], steps_s=[1, 2]))[0])
    assert row["overrides"] == "strategy=paged 'workload.path=a b'"
    assert row["steps_s"] == "[1, 2]"
    assert not any(isinstance(value, list | dict) for value in row.values())
