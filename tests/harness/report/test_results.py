"""Reading run directories: finished ones are found, half-written ones left alone, broken ones shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.errors import UsageError
from kvlab.harness.results import find, load


def test_finds_runs_at_any_depth_and_at_the_directory_itself(write_run, sweep):
    deep = write_run("a/b/c")
    assert deep in find(sweep)
    assert find(deep) == [deep]
    assert len(find(sweep)) == 10


def test_half_written_runs_are_no_runs(write_run, sweep):
    """A run in progress has its configuration and steps, and a temporary file, before its result."""
    (write_run("busy") / "result.json").rename(sweep / "busy" / ".result.json.tmp")
    assert sweep / "busy" not in find(sweep)


def test_nested_keys_become_dotted(write_run):
    (run,), warnings = load(write_run("one", "paged", 3, {"block_size": 16}, **{"waste.whole": {"cached": 0.5}}))
    assert not warnings
    assert run.values["ttft_s.p99"] == 1.5
    assert run.values["waste.whole.cached"] == 0.5
    assert run.values["utilization.whole"] == 0.45
    assert run.config["workload"] == "lognormal"
    assert run.config["workload.num_requests"] == 32
    assert run.seed == 3


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"strategy": "paged"}', '{"schema_version": 1, "status": "done"}', '{"status": "ok"}'],
)
def test_a_corrupt_result_is_one_warning_and_a_hole(write_run, text):
    path = write_run("corrupt")
    (path / "result.json").write_text(text)
    (run,), (warning,) = load(path)
    assert (run.status, run.values) == ("failed", {})
    assert "result.json" in run.reason
    assert str(path) in warning
    assert "\n" not in warning


def test_error_txt_is_a_failed_run_with_the_last_line_as_reason(tmp_path: Path):
    (tmp_path / "error.txt").write_text("Traceback (most recent call last):\n  File\nMemoryError: no room\n\n")
    (run,), _ = load(tmp_path)
    assert (run.status, run.reason) == ("failed", "MemoryError: no room")


def test_a_series_cut_short_loses_its_last_line_only(write_run):
    path = write_run("cut")
    (run,), _ = load(path)
    whole = len(run.steps["time_s"])
    text = (path / "steps.csv").read_text()
    (path / "steps.csv").write_text(text[: text.rindex(",")])
    (run,), _ = load(path)
    assert len(run.steps["time_s"]) == whole - 1


def test_missing_and_empty_directories_are_one_clear_line(tmp_path: Path):
    with pytest.raises(UsageError, match="no such directory"):
        load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no finished run"):
        load(tmp_path)


def test_several_directories_are_read_together_and_no_run_twice(write_run):
    a, b = write_run("a/x"), write_run("b/y")
    runs, _ = load(a.parent, b.parent, a)
    assert [run.path for run in runs] == [a, b]
    (a.parent.parent / "empty").mkdir()
    with pytest.raises(UsageError, match="empty: no finished run"):
        load(a, a.parent.parent / "empty")
