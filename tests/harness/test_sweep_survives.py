"""Kills, full disks and interruptions: what is finished stays readable, and the sweep goes on to the same end."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlab.harness.results import load
from kvlab.harness.rundir import NOT_COMPARED

STUB = Path(__file__).with_name("stub_job.py")
STUBBED = """
import sys
from kvlab.harness import child, report, validate
from kvlab.harness.cli import main
validate.rehearse = lambda configs: None
child.COMMAND = (sys.executable, sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""
HANGS = 95
SIMULATED = ("executor=simulated", "model=llama_3_8b", "gpu=h100", "dtype=bfloat16", "--jobs", "2")
SWEEP = ("sweep", "tracking=none", "--no-report", *SIMULATED)


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STUBBED, str(STUB), *SWEEP, *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def finish(*arguments: str, **options: Any) -> tuple[int, str]:
    process = start(*arguments, **options)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def statuses(directory: Path) -> dict[str, str]:
    runs, warnings = load(directory)
    assert not warnings
    assert not list(directory.rglob("*.tmp"))
    return {run.path.name: run.status for run in runs}


def test_a_killed_sweep_is_taken_up_at_once() -> None:
    process = start("hydra.sweep.dir=out", f"seed=1,2,{HANGS}")
    until(lambda: len(list(Path("out").glob("seed=[12]/result.json"))) == 2)
    process.kill()
    process.communicate()
    assert statuses(Path("out")) == {"seed=1": "ok", "seed=2": "ok"}
    before = Path("out/seed=1/result.json").read_text()
    code, said = finish("hydra.sweep.dir=out", "seed=1,2,3")
    assert (code, "2 finished earlier and not repeated" in said) == (0, True), said
    assert Path("out/seed=1/result.json").read_text() == before
    assert statuses(Path("out")) == dict.fromkeys(("seed=1", "seed=2", "seed=3"), "ok")


@pytest.mark.slow
def test_a_second_sweep_waits_outside() -> None:
    first = start("hydra.sweep.dir=out", f"seed=1,{HANGS}")
    until(lambda: Path(f"out/seed={HANGS}/log.txt").exists())
    code, said = finish("hydra.sweep.dir=out", "seed=2")
    first.send_signal(signal.SIGINT)
    first.communicate()
    assert code == 2
    assert said.endswith("kvlab: out: another sweep is running there; choose another directory\n")
    assert statuses(Path("out")) == {"seed=1": "ok"}


@pytest.fixture(params=[100, 140, 144, 148, 180])
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """4 MiB, of which so many KiB are free: which file is the first without room differs."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a tmpfs")
    try:
        (disk / "ballast").write_bytes(bytes(4 * 2**20 - request.param * 1024))
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.slow
def test_a_full_disk_costs_no_finished_run(small_disk: Path) -> None:
    arguments = (f"hydra.sweep.dir={small_disk / 'out'}", "seed=range(0,8)")
    code, said = finish(*arguments)
    assert code == 1, said
    assert "the disk is full: " in said
    kept = [name for name, status in statuses(small_disk / "out").items() if status == "ok"]
    assert 1 <= len(kept) < 8, "the test needs a disk that holds some of the runs"
    (small_disk / "ballast").unlink()
    code, said = finish(*arguments, "--retry-failed")
    assert (code, f"{len(kept)} finished earlier and not repeated" in said) == (0, True), said
    assert list(statuses(small_disk / "out").values()) == ["ok"] * 8


@pytest.mark.slow
def test_a_limit_of_file_sizes_costs_no_finished_run() -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))  # less than the stub's steps.csv

    assert finish("hydra.sweep.dir=out", "seed=1,4")[0] == 0
    assert finish("hydra.sweep.dir=out", "seed=1,2,3", preexec_fn=limited)[0] == 1
    assert statuses(Path("out")) == {"seed=1": "ok", "seed=2": "failed", "seed=3": "failed", "seed=4": "ok"}
    reason = json.loads(Path("out/seed=2/result.json").read_text())["reason"]
    assert reason == "OSError: [Errno 27] File too large"
    assert finish("hydra.sweep.dir=out", "seed=1,2,3", "--retry-failed")[0] == 0
    assert set(statuses(Path("out")).values()) == {"ok"}


GRID = (
    "workload=azure_conv", "workload.num_requests=300", "workload.rate=8", "strategy=paged,contiguous,vattention",
    "block_size=16,32", "seed=range(0,4)",
)  # fmt: skip


@pytest.mark.slow
def test_interrupted_at_random_and_resumed_it_ends_the_same() -> None:
    """16 simulated runs: the sweep and its workers are killed, and Ctrl-C pressed, until nothing is left to do."""
    command = [sys.executable, "-m", "kvlab.harness.cli", *SWEEP, *GRID, "--retry-failed"]
    subprocess.run([*command, "hydra.sweep.dir=whole"], check=True)
    draw, blows = random.Random(8), 0
    for _ in range(40):
        process = subprocess.Popen([*command, "hydra.sweep.dir=torn"], start_new_session=True)
        if blows < 7 and (target := victim(process, draw)):
            blows += 1
            number = draw.choice([signal.SIGKILL, signal.SIGINT]) if target == process.pid else signal.SIGKILL
            os.kill(target, number)
        if process.wait() == 0:
            break
    assert blows >= 3, "hardly anything was interrupted"
    assert process.returncode == 0
    assert outcome(Path("torn")) == outcome(Path("whole"))


def victim(process: subprocess.Popen[bytes], draw: random.Random) -> int | None:
    """The sweep or one of its workers, some time after its first worker has started; None: it has ended before."""
    until(lambda: process.poll() is not None or children(process.pid))
    time.sleep(draw.uniform(0, 1.5))
    running = [process.pid, process.pid, *children(process.pid)]
    return None if process.poll() is not None else draw.choice(running)


def outcome(directory: Path) -> dict[str, Any]:
    """Everything that is the runs' own: results without times and places, series byte for byte."""
    found: dict[str, Any] = {}
    for place in sorted(path.parent for path in directory.glob("[!.]*/result.json")):
        result = json.loads((place / "result.json").read_text())
        found[place.name] = {key: value for key, value in result.items() if key not in NOT_COMPARED}
        found[place.name] |= {name: (place / name).read_bytes() for name in ("steps.csv", "requests.csv")}
    return found


def children(parent: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    stop = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < stop
        time.sleep(0.02)
