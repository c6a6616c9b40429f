"""`kvlab sweep`, with stubs in place of the runs: order, failures, taking up again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kvlab.harness.cli import main
from kvlab.harness.here import at_once
from kvlab.harness.results import load
from kvlab.harness.sweep import quoted

pytestmark = pytest.mark.usefixtures("stub")
REFUSED, FAILS, KILLED = 91, 93, 94
SWEEP = ("sweep", "hydra.sweep.dir=out", "tracking=none")


def statuses() -> dict[str, str]:
    return {run["label"]: run["status"] for run in json.loads(Path("out/sweep.json").read_text())["runs"]}


def events() -> list[list[str]]:
    return [line.split() for line in Path("out/log.txt").read_text().splitlines()]


def started() -> list[str]:
    return sorted(event[1] for event in events() if event[0] == "start")


def test_a_sweep_runs_each_combination_once_and_one_at_a_time(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, "strategy=paged,contiguous", "block_size=8,16"]) == 0
    said = capfd.readouterr()
    assert said.err.startswith("4 combinations, 3 runs (1 duplicate: contiguous has no block_size)\n")
    assert "tokens/s" not in said.err, "where no terminal is nobody waits for news"
    assert said.err.endswith("3 ok, 0 refused, 0 failed: out\n")
    assert said.out == "the tables\n\n"
    assert statuses() == {
        "strategy=paged,block_size=8": "ok", "strategy=paged,block_size=16": "ok", "strategy=contiguous": "ok",
    }  # fmt: skip
    assert [event[0] for event in events()] == ["start", "stop"] * 3
    log = Path("out/strategy=contiguous/log.txt").read_text()
    assert log == "pool 1,024 blocks x 16 = 16,384 tokens\na library prints this\n"
    result = json.loads(Path("out/strategy=contiguous/result.json").read_text())
    assert result["threads"] == os.environ.get("OMP_NUM_THREADS"), "the sweep has no say in it"


def test_runs_without_timing_share_the_machine() -> None:
    assert main([*SWEEP, "seed=range(0,6)", "timing=off", "--jobs", "2"]) == 0
    names = [event[0] for event in events()]
    running = [names[: index + 1].count("start") - names[: index + 1].count("stop") for index in range(12)]
    assert max(running) == 2
    assert json.loads(Path("out/seed=0/result.json").read_text())["threads"] == "1"


def test_a_failure_is_left_where_the_result_would_be(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, f"seed={FAILS},{KILLED},{REFUSED},1"]) == 1
    assert statuses() == {"seed=93": "failed", "seed=94": "failed", "seed=91": "refused", "seed=1": "ok"}
    assert Path("out/seed=93/error.txt").read_text().startswith("Traceback")
    assert "SIGKILL" in Path("out/seed=94/error.txt").read_text()
    said = capfd.readouterr().err
    assert "1 ok, 1 refused, 2 failed: out\n" in said
    assert "failed: seed=93: RuntimeError: two lines\n" in said


def test_only_refusals_are_no_success() -> None:
    assert main([*SWEEP, f"seed={REFUSED}"]) == 2


def test_finished_runs_are_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, f"seed={FAILS},{REFUSED},1"]) == 1
    assert main([*SWEEP, f"seed={FAILS},{REFUSED},1,2"]) == 1
    said = capfd.readouterr().err
    assert "2 finished earlier and not repeated\n1 failed earlier and not repeated (--retry-failed does)\n" in said
    assert started() == ["seed=1", "seed=2", "seed=91", "seed=93"]
    assert main([*SWEEP, f"seed={FAILS},{REFUSED},1,2", "--retry-failed"]) == 1
    assert started() == ["seed=1", "seed=2", "seed=91", "seed=93", "seed=93"]


def test_finished_runs_are_found_whatever_they_are_called() -> None:
    assert main([*SWEEP, "seed=1,2"]) == 0
    assert main([*SWEEP, "strategy=paged,contiguous", "seed=1,2"]) == 0
    assert len(started()) == 4
    assert len(list(Path("out").glob("*/result.json"))) == 4


def test_a_label_that_is_taken_by_another_run_is_not_overwritten() -> None:
    assert main([*SWEEP, "seed=1,2"]) == 0
    assert main([*SWEEP, "seed=1,2", "max_len=512"]) == 0
    lengths = [json.loads(path.read_text())["max_len"] for path in Path("out").glob("*/config.json")]
    assert sorted(lengths) == [512, 512, 4096, 4096]


def test_resume_needs_the_directory_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, f"seed={FAILS},1"]) == 1
    manifest = json.loads(Path("out/sweep.json").read_text())
    assert manifest["overrides"] == ["tracking=none", f"seed={FAILS},1"]
    assert main(["sweep", "--resume", "out", "--json"]) == 1
    said = capfd.readouterr()
    assert "1 finished earlier and not repeated" in said.err
    assert json.loads(said.out[said.out.index("{") :])["overrides"] == manifest["overrides"]


def test_what_a_sweep_is_taken_up_with_stands_beside_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """`--resume out tracking=none` forgot the sweep's own overrides: one run of the defaults took its place."""
    words = ["tracking=wandb", "tracking.mode=offline", f"seed={FAILS},1", "max_len=512"]
    assert main(["sweep", "hydra.sweep.dir=out", *words]) == 1
    assert main(["sweep", "--resume", "out", "tracking=none"]) == 1
    said = capfd.readouterr().err
    assert "2 combinations, 2 runs\n" in said
    assert "1 finished earlier and not repeated\n1 failed earlier and not repeated" in said
    assert "tracking=none: nothing goes to W&B" in said
    assert json.loads(Path("out/sweep.json").read_text())["overrides"] == [*words[2:], "tracking=none"]
    assert statuses() == {"seed=1": "ok", f"seed={FAILS}": "failed"}


@pytest.mark.parametrize("line", ["seed=4", "+workload.rate=3", "hydra.sweep.dir=there", "trackingx=1"])
def test_a_sweep_that_is_taken_up_keeps_its_runs(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, "seed=1"]) == 0
    before = Path("out/sweep.json").read_text()
    capfd.readouterr()
    assert main(["sweep", "--resume", "out", line]) == 2
    said = capfd.readouterr().err
    assert said.startswith(f"kvlab: {line}: a sweep that is taken up has its own values; allowed with --resume is ")
    assert said.endswith("kvlab sweep hydra.sweep.dir=out NAME=VALUE ...)\n")
    assert Path("out/sweep.json").read_text() == before


def test_a_sweep_is_taken_up_from_anywhere(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A relative workload.path was looked for where --resume was typed."""
    Path("trace.csv").write_text("prompt_len,output_len\n3,4\n")
    assert main([*SWEEP, "workload.path=trace.csv", f"seed={FAILS},1"]) == 1
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    for _ in range(2):  # what it was typed in is kept
        assert main(["sweep", "--resume", "../out"]) == 1
        assert "1 finished earlier and not repeated" in capfd.readouterr().err


def test_a_wrong_combination_refuses_the_whole_sweep(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, "seed=1,2,x"]) == 2
    assert capfd.readouterr().err == "kvlab: seed=x: allowed is a whole number, 0 or more\n"
    assert not Path("out").exists()


def test_a_dry_run_lists_and_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, "seed=1,2", "--dry-run"]) == 0
    *lines, total = capfd.readouterr().out.splitlines()
    assert sorted(line.split(maxsplit=2)[:2] for line in lines) == [["seed=1", "unknown"], ["seed=2", "unknown"]]
    assert total.startswith("2 runs one after the other: unknown; memory of the largest: 1.")
    assert not Path("out").exists()


def test_a_dry_run_expects_what_earlier_runs_took(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, "seed=1"]) == 0
    assert main([*SWEEP, "strategy=paged,contiguous", "seed=2", "--dry-run"]) == 0
    result = json.loads(Path("out/run/result.json").read_text())
    times = dict(line.split()[:2] for line in capfd.readouterr().out.splitlines() if line.startswith("strategy="))
    assert float(times["strategy=paged"]) == pytest.approx(result["wall_s"], rel=0.01)
    assert times["strategy=contiguous"] == "unknown"


def test_everything_is_done_again_on_request_and_what_was_is_kept() -> None:
    assert main([*SWEEP, "seed=1,2"]) == 0
    first = Path("out/seed=1/result.json").read_text()
    assert main([*SWEEP, "seed=1,2", "--rerun"]) == 0
    assert started() == ["seed=1", "seed=1", "seed=2", "seed=2"]
    assert Path("out/.earlier/seed=1-1/result.json").read_text() == first
    assert [run.path.name for run in load(Path("out"))[0]] == ["seed=1", "seed=2"], "a table counts none twice"


def test_what_other_code_did_is_done_again(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """After a change to a strategy its old results stood in the tables."""
    assert main([*SWEEP, f"seed={FAILS},1"]) == 1
    monkeypatch.setattr("kvlab.harness.identity._kvlab", lambda: "changed")
    assert main([*SWEEP, f"seed={FAILS},1"]) == 1
    assert "2 ended earlier with other code: done again, finished ones kept in .earlier\n" in capfd.readouterr().err
    assert started() == ["seed=1", "seed=1", "seed=93", "seed=93"]
    assert Path("out/.earlier/seed=1-1/result.json").exists()


def test_two_sweeps_do_not_share_a_directory(capfd: pytest.CaptureFixture[str]) -> None:
    from kvlab.harness.manifest import locked

    with locked(Path("out")):
        assert main([*SWEEP, "seed=1"]) == 2
    assert "out: another sweep is running there" in capfd.readouterr().err


def test_json_needs_no_report(capfd: pytest.CaptureFixture[str]) -> None:
    """With --no-report nothing was printed."""
    assert main([*SWEEP, "seed=1", "--json", "--no-report"]) == 0
    assert json.loads(capfd.readouterr().out)["runs"][0]["status"] == "ok"


def test_a_terminal_is_spared_the_pictures(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def write(directory: Path) -> Path:
        path = directory / "report.md"
        path.write_text("the tables\n\na note\n\n![waste](figures/waste.png)\n\n![maps](figures/maps.png)\n")
        return path

    monkeypatch.setattr("kvlab.harness.report.write_report", write)
    assert main([*SWEEP, "seed=1"]) == 0
    assert capfd.readouterr().out == "the tables\n\na note\n"


def test_a_report_that_fails_costs_no_results(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvlab.harness.report.write_report", lambda directory: 1 / 0)
    assert main([*SWEEP, "seed=1"]) == 1
    assert statuses() == {"run": "ok"}
    assert "no report: ZeroDivisionError: division by zero (results are whole; kvlab report out)" in (
        capfd.readouterr().err
    )


@pytest.mark.parametrize("name", ["plain", "a b", "it's", "a,b=c", "back\\slash", "[x]"])
def test_any_directory_can_be_resumed(name: str) -> None:
    from kvlab.harness.compose import compose

    assert str(compose([f"hydra.sweep.dir={quoted(name)}"]).sweep_dir) == name


def test_a_default_pool_counts_as_large_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for 1 GiB whatever max_len was, so that runs at once filled the memory and were killed."""
    from kvlab.harness.plan import make_plan

    runs = make_plan(["model=tiny", "dtype=float64", "max_len=4194304", "seed=range(0,4)", "timing=false"]).runs
    monkeypatch.setattr("kvlab.harness.here.cores", lambda: 8)
    monkeypatch.setattr("kvlab.harness.here.available_bytes", lambda: 40 * 2**30)
    assert at_once(runs) == 2  # pools of 4 x 4,194,304 tokens of 1 KiB: 16 GiB


def test_as_many_at_once_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvlab.harness.plan import Planned

    runs = [Planned("a", {"pool_bytes": 3 * 2**30}, ())] * 8
    monkeypatch.setattr("kvlab.harness.here.cores", lambda: 6)
    monkeypatch.setattr("kvlab.harness.here.available_bytes", lambda: 17 * 2**30)
    assert at_once(runs) == 4
    monkeypatch.setattr("kvlab.harness.here.available_bytes", lambda: 2**40)
    assert at_once(runs) == 6
    monkeypatch.setattr("kvlab.harness.here.available_bytes", lambda: 0)
    assert at_once(runs) == 1
