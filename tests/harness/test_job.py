"""One run in this process: what it leaves behind, however it ends."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvlab.errors import UsageError
from kvlab.harness import provenance, rundir
from kvlab.harness.job import Progress, run_job


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    rundir.prepare(tmp_path / "run", {"seed": 3, "strategy": {"name": "paged"}}, ["seed=3"])
    return tmp_path / "run"


def ending(outcome: dict[str, Any] | BaseException) -> Callable[..., dict[str, Any]]:
    def execute(*_: object) -> dict[str, Any]:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return execute


def test_a_result_can_be_repeated_and_traced(directory: Path) -> None:
    metrics = {"status": "ok", "tokens_per_s": np.float64(12.5), "steps": np.int64(7), "ttft_s": {"p50": np.nan}}
    assert run_job(directory, ending(metrics)) == 0
    result = json.loads((directory / "result.json").read_text())
    assert result["schema_version"] == 1
    assert result["overrides"] == ["seed=3"]
    assert result["config"]["seed"] == 3
    assert (result["tokens_per_s"], result["steps"], result["ttft_s"]) == (12.5, 7, {"p50": None})
    assert {"kvlab", "python", "torch", "numpy", "commit", "dirty"} <= result["versions"].keys()
    assert {"cpu", "cores", "memory_bytes", "os"} <= result["machine"].keys()
    assert result["started"].endswith("+00:00")
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "overrides.json", "result.json"]


def test_a_refusal_is_a_result(directory: Path) -> None:
    assert run_job(directory, ending({"status": "refused", "reason": "no request fits"})) == 2
    assert rundir.is_finished(directory)


@pytest.mark.parametrize(
    ("error", "status", "reason", "details"),
    [
        (UsageError("max_len=1: allowed is 2"), 2, "max_len=1: allowed is 2", "max_len=1: allowed is 2\n"),
        (RuntimeError("one\ntwo"), 1, "RuntimeError: one two", "Traceback"),
        (MemoryError(), 1, "out of memory: MemoryError:", "Traceback"),
    ],
)
def test_an_error_stands_where_the_result_would(
    error: Exception, status: int, reason: str, details: str, directory: Path
) -> None:
    assert run_job(directory, ending(error)) == status
    result = rundir.read_result(directory)
    assert result
    assert (result["status"], result["reason"]) == ("failed", reason)
    assert result["config"] == {"seed": 3, "strategy": {"name": "paged"}}
    assert (directory / "error.txt").read_text().startswith(details)
    assert not rundir.is_finished(directory)


def test_a_run_that_fails_late_leaves_no_half_of_its_series(directory: Path) -> None:
    """On a full disk a cut steps.csv was left, and no room for the error."""

    def execute(*_: object) -> dict[str, Any]:
        (directory / "steps.csv").write_text("step,time_s\n0,")
        raise OSError(errno.ENOSPC, "No space left on device")

    assert run_job(directory, execute) == 1
    left = sorted(path.name for path in directory.iterdir())
    assert left == ["config.json", "error.txt", "overrides.json", "result.json"]
    result = rundir.read_result(directory)
    assert result
    assert result["reason"] == "the disk is full"
    assert "[Errno 28] No space left on device" in (directory / "error.txt").read_text()


def test_a_preparation_that_was_cut_short_is_begun_again(tmp_path: Path) -> None:
    """A directory whose config.json was never written was taken for somebody else's, also by --resume."""
    (tmp_path / "overrides.json").write_text("[]")
    (tmp_path / "config.json.123.tmp").write_text('{"se')
    rundir.prepare(tmp_path, {"seed": 3}, ["seed=3"])
    assert rundir.read_json(tmp_path / "config.json") == {"seed": 3}


def test_an_interrupted_run_leaves_no_result(directory: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_job(directory, ending(KeyboardInterrupt()))
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "overrides.json"]


def test_progress_is_thinned_but_ends_whole(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for done in range(1, 1001):
        progress(done, 1000)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) < 100
    assert lines[-1] == {"progress": [1000, 1000]}


def test_a_torn_result_is_no_result(directory: Path) -> None:
    (directory / "result.json").write_text('{"status": "ok", "tok')
    assert rundir.read_result(directory) is None


@pytest.mark.parametrize("content", [{"a.txt": "mine"}, {"config.json": '{"hidden_size": 64}'}])
def test_a_directory_of_something_else_is_left_alone(content: dict[str, str], tmp_path: Path) -> None:
    """A run directory given as a checkpoint's would have lost its config.json."""
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="not empty and not a run's directory"):
        rundir.prepare(tmp_path, {"seed": 0}, [])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == content


def test_another_run_is_not_overwritten(directory: Path) -> None:
    with pytest.raises(UsageError, match="holds another run, which differs in seed;"):
        rundir.prepare(directory, {"seed": 4, "strategy": {"name": "paged"}}, [])


def test_no_commit_outside_a_checkout(tmp_path: Path) -> None:
    assert provenance.commit(tmp_path) == {"commit": None, "dirty": None}


def test_a_result_gets_its_name_when_everything_is_on_the_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a whole result could have stood beside an empty series."""
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(file: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        sync(file)

    def noted_replace(path: Path, target: Path) -> Path:
        done.append(f"now {target.name}")
        return replace(path, target)

    monkeypatch.setattr("os.fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    (directory / "steps.csv").write_text("step\n")
    rundir.write_result(directory, {"status": "ok"})
    written = f"result.json.{os.getpid()}.tmp"
    assert done == ["config.json", "overrides.json", "steps.csv", written, "now result.json", directory.name]
