"""Simulated runs follow each other in warm processes; a run that takes too much or dies costs no other."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from kvlab.errors import UsageError
from kvlab.harness import rundir
from kvlab.harness.cli import main
from kvlab.harness.limits import Limits

pytestmark = pytest.mark.usefixtures("stub")
FAILS, KILLED, HANGS, GREEDY, NO_SPACE = 93, 94, 95, 96, 97
SIMULATED = ("executor=simulated", "model=llama_3_8b", "gpu=h100", "dtype=bfloat16")
SWEEP = ("sweep", "hydra.sweep.dir=out", "tracking=none", "--jobs", "1", *SIMULATED)


def results(seeds: Iterable[int]) -> list[dict[str, object]]:
    return [json.loads(Path(f"out/seed={seed}/result.json").read_text()) for seed in seeds]


def test_simulated_runs_share_a_process() -> None:
    assert main([*SWEEP, "seed=1,2,3"]) == 0
    assert len({result["process"] for result in results((1, 2, 3))}) == 1
    assert main([*SWEEP[:5], "--jobs", "1", "seed=4,5"]) == 0
    assert len({result["process"] for result in results((4, 5))}) == 2, "real runs each have their own"


def test_a_worker_that_dies_is_replaced_and_its_run_recorded() -> None:
    assert main([*SWEEP, f"seed=1,{KILLED},{FAILS},2,3"]) == 1
    first, killed, failed, second, third = results((1, KILLED, FAILS, 2, 3))
    assert killed["status"] == failed["status"] == "failed"
    assert "crash: the run's process was killed by SIGKILL" in str(killed["reason"])
    assert failed["reason"] == "RuntimeError: two lines"
    assert first["process"] != second["process"] == third["process"]


def test_each_run_of_a_worker_has_a_log_of_its_own() -> None:
    assert main([*SWEEP, "seed=1,2"]) == 0
    for seed in (1, 2):
        log = Path(f"out/seed={seed}/log.txt").read_text()
        assert log == "pool 1,024 blocks x 16 = 16,384 tokens\na library prints this\n"


@pytest.mark.slow
@pytest.mark.parametrize("executor", [SIMULATED, ()])
def test_limits_end_a_run_and_say_so(executor: tuple[str, ...]) -> None:
    command = [*SWEEP[:5], *executor, f"seed={HANGS},{GREEDY},1"]
    assert main([*command, "--time-limit", "3s", "--memory-limit", "300MiB"]) == 1
    late, large, fine = results((HANGS, GREEDY, 1))
    assert late["reason"] == "time-out: not done after 3 s (--time-limit)"
    assert str(large["reason"]).startswith("out of memory: ")
    assert str(large["reason"]).endswith("MiB resident, allowed is 300 MiB (--memory-limit)")
    assert fine["status"] == "ok"


def test_a_full_disk_stops_the_sweep(capfd: pytest.CaptureFixture[str]) -> None:
    """Each of the runs that followed would have failed for it."""
    assert main([*SWEEP, f"seed=1,{NO_SPACE},2"]) == 1
    said = (
        "the disk is full: 1 of 3 runs are finished and stay; take it up with: kvlab sweep --resume out --retry-failed"
    )
    assert capfd.readouterr().err.endswith(f"kvlab: {said}\n")
    assert not Path("out/seed=2/result.json").exists()


@pytest.mark.parametrize("name", ["overrides.json", "config.json"])
def test_a_disk_that_is_full_between_two_runs_stops_it_too(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Found while a run was prepared it counted as wrong use: exit status 2, and no word of what is left to do."""
    write = rundir._write

    def fills(path: Path, text: str, sync: bool = True) -> None:
        if path == Path("out/seed=2") / name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, text, sync)

    monkeypatch.setattr(rundir, "_write", fills)
    assert main([*SWEEP, "seed=1,2,3"]) == 1
    assert "kvlab: the disk is full: 1 of 3 runs are finished and stay; take it up" in capfd.readouterr().err
    assert not Path("out/seed=2/result.json").exists()
    assert not Path("out/seed=3").exists()
    monkeypatch.setattr(rundir, "_write", write)
    assert main([*SWEEP, "seed=1,2,3"]) == 0


@pytest.mark.parametrize("text", ["0s", "-1", "1d", "soon"])
def test_a_wrong_limit_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="--time-limit .*: allowed is a time such as 90s, 30m or 2h"):
        Limits.of(text, None)


def test_limits_are_written_as_people_do() -> None:
    assert Limits.of("1.5h", "2GiB") == Limits(5400.0, 2 * 2**30)
