"""Sweeps as jobs of a cluster: the same results, and nothing lost when a job is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvlab.errors import UsageError
from kvlab.harness import clusters, remote, rundir
from kvlab.harness.cli import main
from kvlab.harness.limits import Limits
from kvlab.harness.overrides import HYDRA_NAMES
from kvlab.harness.plan import make_plan
from kvlab.harness.rundir import NOT_COMPARED

FAILS, LOST = 93, 5
SIMULATED = (
    "executor=simulated", "model=llama_3_8b", "gpu=h100", "dtype=bfloat16", "workload=fixed",
    "workload.num_requests=16", "strategy=paged,contiguous", "seed=1,2",
)  # fmt: skip
REAL = ("model=tiny", "dtype=float64", "engine.threads=1", "engine.clock=steps", "workload=fixed",
        "workload.num_requests=3", "workload.prompt_len=9", "workload.output_len=4", "timing=false")  # fmt: skip


class Done:
    """A job that is over as soon as it is there."""

    def ended(self) -> str:
        return "job 7 ended (NODE_FAIL)"

    def cancel(self) -> None:
        raise AssertionError("nothing was to be stopped")


class Queue:
    """A cluster in this process; what has seed LOST is lost."""

    width = 2

    def __init__(self) -> None:
        self.chunks: list[list[Path]] = []

    def submit(self, chunks: Sequence[list[Path]], limits: Limits) -> list[clusters.Job]:
        for chunk in chunks:
            self.chunks.append(list(chunk))
            kept = [place for place in chunk if rundir.read_json(place / rundir.CONFIG)["seed"] != LOST]
            remote.carry_out([str(place) for place in kept], limits)
        return [Done() for _ in chunks]

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch, stub: None) -> Queue:
    """Stands in for the cluster that hydra/launcher names."""
    cluster = Queue()
    monkeypatch.setattr("kvlab.harness.elsewhere.cluster_of", lambda launcher, width: cluster)
    monkeypatch.setattr("kvlab.harness.elsewhere.SECONDS_TO_APPEAR", 0.0)
    monkeypatch.setattr("kvlab.harness.composed._launcher", lambda own, name: {"launcher": "a queue"})
    return cluster


def test_jobs_bring_results_and_those_that_are_lost_are_recorded(queue: Queue) -> None:
    arguments = ["sweep", "hydra.sweep.dir=out", "tracking=none", f"seed=1,{FAILS},{LOST},2", "--runs-per-job", "3"]
    assert main(arguments) == 1
    assert [len(chunk) for chunk in queue.chunks] == [3, 1]
    results = {path.parent.name: json.loads(path.read_text()) for path in Path("out").glob("*/result.json")}
    assert {name: result["status"] for name, result in results.items()} == {
        "seed=1": "ok", f"seed={FAILS}": "failed", f"seed={LOST}": "failed", "seed=2": "ok",
    }  # fmt: skip
    assert results[f"seed={LOST}"]["reason"] == "crash: job 7 ended (NODE_FAIL)"
    assert "a library prints this" in Path("out/seed=1/log.txt").read_text()
    assert main(arguments) == 1
    assert len(queue.chunks) == 2, "nothing was left to do"


def test_a_job_that_comes_late_leaves_a_result_alone(stub: None) -> None:
    rundir.prepare(Path("run"), {"seed": 1, "executor": "real", "timing": True, "strategy": {"name": "paged"}}, [])
    rundir.write_result(Path("run"), {"schema_version": 1, "status": "ok", "tokens_per_s": 1.0})
    remote.carry_out(["run"], Limits())
    assert json.loads(Path("run/result.json").read_text())["tokens_per_s"] == 1.0


def test_a_run_that_another_job_is_at_is_not_prepared_again(queue: Queue, capfd: pytest.CaptureFixture[str]) -> None:
    """Jobs outlive a sweep that is killed; the next sweep would clear what they are writing."""
    with rundir.claimed(Path("out/run")):
        assert main(["sweep", "hydra.sweep.dir=out", "tracking=none", "seed=1"]) == 2
    assert "out/run: another run is under way there" in capfd.readouterr().err


def test_launchers_are_settings_of_a_sweep_and_not_of_its_runs() -> None:
    need("submitit_slurm")
    plan = make_plan(["hydra/launcher=submitit_slurm", "hydra.launcher.partition=gpu", "seed=1,2"])
    assert (plan.launcher["launcher"], plan.launcher["partition"]) == ("submitit_slurm", "gpu")
    assert {line for run in plan.runs for line in run.overrides} == {"seed=1", "seed=2"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("joblib", "allowed is basic (this machine), submitit_slurm, submitit_local, ray"),
        ("submitit_slurm", "it is not installed: pip install 'kvlab[slurm]'"),
        ("ray", "it is not installed: pip install 'kvlab[ray]'"),
    ],
)
def test_what_is_not_there_is_said_with_what_brings_it(name: str, said: str) -> None:
    assert clusters.missing(name) == said


def test_other_settings_of_hydra_are_refused() -> None:
    with pytest.raises(UsageError, match=f"hydra.job.name: allowed of Hydra's own settings is {HYDRA_NAMES[0]}"):
        make_plan(["hydra.job.name=mine"])


def sweep(directory: str, *arguments: str) -> dict[str, Any]:
    """The results of a sweep in a process of its own: names -> what is the runs' own, series included."""
    command = [sys.executable, "-m", "kvlab.harness.cli", "sweep", "tracking=none", "--no-report"]
    done = subprocess.run([*command, f"hydra.sweep.dir={directory}", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = {}
    for path in sorted(Path(directory).glob("[!.]*/result.json")):
        result = json.loads(path.read_text())
        kept = {key: value for key, value in result.items() if key not in NOT_COMPARED}
        found[path.parent.name] = {**without_times(kept), "requests": (path.parent / "requests.csv").read_text()}
    return found


def without_times(value: Any) -> Any:
    """Of real runs: how long their own work took is no result of theirs."""
    if not isinstance(value, dict):
        return value
    measured = ("_us_per_step", "others_cpu_share")
    return {key: without_times(item) for key, item in value.items() if not key.endswith(measured)}


def need(launcher: str) -> None:
    """Skips where the extra that brings it is not installed."""
    extra = clusters.EXTRAS[launcher]
    plugin = {"slurm": "hydra_submitit_launcher", "ray": "hydra_ray_launcher"}[extra]
    if not find_spec("hydra_plugins") or not find_spec(f"hydra_plugins.{plugin}"):
        pytest.skip(f"needs kvlab[{extra}]")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["submitit_local", "ray"])
def test_a_cluster_gives_what_this_machine_gives(launcher: str) -> None:
    need(launcher)
    for name, grid in (("simulated", SIMULATED), ("real", REAL)):
        here = sweep(f"here-{name}", *grid)
        there = sweep(f"there-{name}", *grid, f"hydra/launcher={launcher}", "--runs-per-job", "2")
        assert len(here) == (4 if grid is SIMULATED else 1)
        assert there == here


@pytest.mark.slow
def test_slurm_is_given_an_array_with_what_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Slurm's commands are stand-ins that run the tasks here; what submitit writes for them is the real thing."""
    need("submitit_slurm")
    monkeypatch.setenv("PATH", f"{Path(__file__).with_name('slurm')}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path))
    asked = ("hydra.launcher.partition=gpu", "hydra.launcher.mem_gb=8", "hydra.launcher.array_parallelism=3")
    exclusive = "+hydra.launcher.additional_parameters.exclusive=true"
    there = sweep("there", *SIMULATED, "hydra/launcher=submitit_slurm", *asked, exclusive)
    script = Path("script").read_text()
    for line in ("--array=0-3%3", "--partition=gpu", "--mem=8GB", "--exclusive", "--job-name=kvlab"):
        assert f"#SBATCH {line}\n" in script
    assert there == sweep("here", *SIMULATED)
