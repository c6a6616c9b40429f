"""The process of `kvlab run` that is there, importing, before it is known what to run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvlab.harness import job, launch, rundir
from kvlab.harness.child import Child
from kvlab.harness.cli import main

SIMULATED = ["executor=simulated", "+experiment=capacity", "preset=vllm_v1", "hydra/launcher=submitit_slurm"]


@pytest.fixture
def children(stub: None, monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """All that are started."""
    made: list[Child] = []

    class Noted(Child):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            made.append(self)

    monkeypatch.setattr(launch, "Child", Noted)
    return made


def test_a_run_is_carried_out_by_the_process_that_was_there(children: list[Child]) -> None:
    assert main(["run", "hydra.run.dir=out"]) == 0
    (child,) = children
    assert json.loads(Path("out/result.json").read_text())["process"] == child.process.pid
    assert child.process.returncode == 0


@pytest.mark.parametrize("override", ["strategy=nonsense", "max_len=1", "hydra.run.dir=out seed=x"])
def test_wrong_values_leave_no_process(override: str, children: list[Child], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *override.split()]) == 2
    assert capfd.readouterr().err.count("\n") == 1
    assert [child.process.poll() is not None for child in children] == [True]


def test_a_run_that_is_not_repeated_leaves_none(children: list[Child]) -> None:
    assert main(["run", "hydra.run.dir=out"]) == main(["run", "hydra.run.dir=out"]) == 0
    assert [child.process.poll() is not None for child in children] == [True, True]


@pytest.mark.parametrize("override", SIMULATED)
def test_what_may_not_be_a_real_run_imports_nothing_for_one(override: str, children: list[Child]) -> None:
    with launch.begun(["seed=1", override]) as child:
        assert child is None
    assert not children


def test_one_that_died_meanwhile_is_told_as_any_other(
    stub: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvlab.harness.child.COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    assert main(["run", "hydra.run.dir=out"]) == 1
    assert "the run's process ended with status 3 and left no result" in capfd.readouterr().err
    assert json.loads(Path("out/result.json").read_text())["status"] == "failed"


def ahead(monkeypatch: pytest.MonkeyPatch, imports: Any, engine: Any) -> dict[str, Any]:
    """The result of a run behind such imports, and such an engine."""
    rundir.prepare(Path("run"), {"seed": 3, "strategy": {"name": "paged"}}, [])
    monkeypatch.setattr(job, "_import_ahead", imports)
    monkeypatch.setattr(job, "_engine", engine)
    assert job.run_ahead([json.dumps("run")]) == 0
    result: dict[str, Any] = json.loads(Path("run/result.json").read_text())
    return result


def test_the_time_of_imports_is_the_run_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """They counted, as long as they came behind the run's beginning."""
    clock = iter([10.0, 17.5])
    monkeypatch.setattr("kvlab.harness.job.time.perf_counter", lambda: next(clock))
    result = ahead(monkeypatch, lambda: None, lambda: lambda *_: {"status": "ok"})
    assert result["wall_s"] == 7.5


def test_imports_that_fail_are_the_run_s_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ModuleNotFoundError("No module named 'torch'")

    result = ahead(monkeypatch, missing, missing)
    assert (result["status"], result["reason"]) == ("failed", "ModuleNotFoundError: No module named 'torch'")
