"""`kvlab report`: what it writes, prints and refuses."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from kvlab.errors import UsageError
from kvlab.harness import report
from kvlab.harness.caption import caption
from kvlab.harness.results import load


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    return report.run(parser.parse_args(words))


def test_writes_report_table_and_figures(sweep):
    path = report.write_report(sweep)
    text = path.read_text()
    assert path == sweep / "report.md"
    assert (sweep / "table.csv").read_text().startswith("strategy,n,")
    for name in ("waste", "throughput", "utilization", "pool_over_time"):
        assert f"(figures/{name}.png)" in text
        assert (sweep / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_of_a_reported_directory_is_the_same(sweep):
    first = report.write_report(sweep).read_text()
    assert report.write_report(sweep).read_text() == first


def test_prints_the_table(sweep, capsys):
    assert call(str(sweep)) == 0
    out = capsys.readouterr().out
    assert "| vattention |" in out
    assert "model tiny; dtype float32; workload lognormal (drawn); pool 4 MiB (4,194,304 bytes, 4,096 tokens)" in out


def test_json_is_a_list_of_rows_and_nothing_else(sweep, capsys):
    assert call(str(sweep), "--json", "--by", "strategy") == 0
    lines = json.loads(capsys.readouterr().out)
    assert [line["strategy"] for line in lines] == ["contiguous", "paged", "vattention"]


def test_a_corrupt_result_is_one_warning_on_stderr(write_run, sweep, capsys):
    (write_run("corrupt") / "result.json").write_text("{")
    assert call(str(sweep)) == 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert "corrupt" in warning


def test_runs_without_series_or_all_failed_still_make_a_report(write_run):
    path = write_run("a")
    (path / "steps.csv").unlink()
    assert "No figure over time" in report.write_report(path).read_text()
    failed = write_run("b", status="failed", reason="broken")
    text = report.write_report(failed).read_text()
    assert "No figure: no run finished." in text
    assert "broken" in text


def test_missing_or_empty_directory(tmp_path):
    with pytest.raises(UsageError, match="no such directory"):
        call(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="no finished run"):
        call(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_unwritable_directory_is_a_usage_error(sweep):
    (sweep / "figures").write_text("a file where the folder belongs")
    with pytest.raises(UsageError, match="cannot write the report"):
        report.write_report(sweep)


def test_without_matplotlib_the_message_says_what_to_install(sweep, monkeypatch):
    monkeypatch.delitem(sys.modules, "kvlab.harness.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delattr("kvlab.harness.figures", raising=False)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        report.write_report(sweep)


def test_the_verb_loads_nothing_heavy_until_it_runs():
    code = "import sys, kvlab.harness.report; print({'numpy', 'torch', 'matplotlib', 'hydra'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_caption_names_every_value_where_runs_differ_and_the_command(write_run, sweep):
    write_run("v", "vattention", 0, {"page_group_bytes": 65536}, capacity={"page_group_tokens": 85.3333})
    made = [{"directory": path.parent.name} for path in sweep.glob("*/result.json")]
    (sweep / "sweep.json").write_text(json.dumps({"overrides": ["strategy=contiguous,paged"], "runs": made}))
    text = caption(load(sweep)[0])
    assert "page group 64 KiB in one tensor = 85.33 tokens" in text
    assert "kernel reference; executor real; machine a test machine, 2 cores; commit 0123456789 with changes" in text
    assert "seeds 0, 1, 2" in text
    assert "command `kvlab sweep strategy=contiguous,paged`" in text
    assert "command `kvlab sweep strategy=contiguous,paged`" in caption(load(sweep.parent)[0])
    one = caption(load(sweep / "paged-1")[0])
    assert "command `kvlab run strategy=paged seed=1`" in one


def test_caption_names_no_command_that_makes_only_some_of_the_runs(write_run, sweep):
    """A directory used for a second sweep showed the second one's command above the runs of both."""
    made = [{"directory": path.parent.name} for path in sweep.glob("*/result.json")]
    (sweep / "sweep.json").write_text(json.dumps({"overrides": ["seed=0,1,2"], "runs": made}))
    assert "command" in caption(load(sweep)[0])
    write_run("earlier")
    assert "command" not in caption(load(sweep)[0])


def test_a_failed_run_adds_nothing_empty_to_the_caption(write_run, sweep):
    """It was `workload lognormal (drawn), lognormal ()`."""
    write_run("f", "paged", 3, status="failed", reason="broken", workload={})
    assert "workload lognormal (drawn);" in caption(load(sweep)[0])
    alone = write_run("other", status="failed", reason="broken", workload={}, config={"workload": {"name": "trace"}})
    assert "workload trace;" in caption(load(alone)[0])
    assert "workload lognormal (drawn), trace;" in caption(load(sweep)[0])


def test_runs_of_a_sweep_without_a_result_are_named(write_run, sweep):
    listed = [{"directory": path.parent.name, "label": path.parent.name} for path in sweep.glob("*/result.json")]
    listed += [{"directory": f"paged-{seed}", "label": f"paged,seed={seed}"} for seed in (7, 8)]
    (sweep / "sweep.json").write_text(json.dumps({"overrides": [], "runs": listed}))
    assert "Not run: 2 of 11 runs of sweep: paged,seed=7, paged,seed=8." in report.make(sweep).text


def test_figures_for_a_paper_are_pdf_too(write_run, capsys):
    path = write_run("a")
    assert call(str(path), "--pdf") == 0
    figures = {file.name for file in (path / "figures").iterdir()}
    assert {"waste.png", "waste.pdf", "pool_over_time.pdf"} <= figures
    assert (path / "figures/waste.pdf").read_bytes().startswith(b"%PDF")
