"""The command with the real engine and the tiny model, each run in its own process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvlab.harness import cli
from kvlab.harness.cli import main

TINY = (
    "model=tiny", "dtype=float64", "max_len=64", "workload=fixed", "workload.num_requests=6",
    "workload.prompt_len=24", "workload.output_len=8",
)  # fmt: skip
STRATEGIES = list(Path(cli.__file__).parents[1].glob("conf/strategy/*.yaml"))
PROMISED = [
    "status",
    "strategy",
    "executor",
    "deterministic",
    "tokens_per_s",
    "utilization",
    "allocated_utilization",
    "pool_usage",
    "waste",
    "peak_committed_bytes",
    "num_preemptions",
    "recomputed_tokens",
    "num_refused",
    "num_ties",
    "mean_batch_size",
    "prefix_hit_rate",
    "ttft_s",
    "tpot_s",
    "itl_s",
    "goodput",
    "most_preemptions",
    "normalized_latency_s",
    "allocator_us_per_step",
    "others_cpu_share",
    "timing_valid",
    "output_digest",
    "schema_version",
    "config",
    "overrides",
    "versions",
    "machine",
    "started",
    "wall_s",
]


def test_a_run_writes_what_scripts_rely_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json", *TINY, "hydra.run.dir=out"]) == 0
    said = capfd.readouterr()
    result = json.loads(said.out)
    assert [key for key in PROMISED if key not in result] == []
    assert result["status"] == "ok"
    assert said.err.startswith("pool 16 blocks x 16 = 256 tokens = ")
    assert {path.name for path in Path("out").iterdir()} == {
        "config.json", "overrides.json", "result.json", "steps.csv", "requests.csv", "outputs.jsonl",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("workload.path=/nowhere", "kvlab: workload.path=/nowhere: no such file"),
        ("model.path=/nowhere", "kvlab: model.path=/nowhere: no such file or directory"),
        ("pool_bytes=100", "kvlab: pool_bytes=100 holds no token"),
        ("pool_bytes=99999GiB", "allowed is at most this machine's memory"),
        ("max_len=9000", "kvlab: max_len=9000: allowed with this model is at most 8192 tokens"),
        ("admission._target_=kvlab.engine.axes.Newest", "allowed is a class with a method terms"),
        (
            "forecast._target_=os.getcwd",
            "kvlab: forecast._target_=os.getcwd: is no class; allowed is package.module.Class",
        ),
        ("~victim._target_", "kvlab: victim._target_: it is needed"),
        ("model.rope_theta=nan", "kvlab: model rope_theta=nan: allowed is a number above 0"),
        ("model.tied=3", "kvlab: model tied=3: allowed is true or false"),
        ("model.layers=99999999999999999999", "allowed is at most 4096"),
        ("model.hidden=9999999", "weights by its sizes; allowed are at most"),
        ("+model.lyers=3", "kvlab: model.lyers: model=tiny has no such size; it has layers"),
        ("workload.num_requests=99999999999999999999", "allowed is at most 1000000"),
    ],
)
def test_a_sweep_with_a_mistake_does_not_start(line: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Numbers beyond all sense, NaN and a class for another axis came out as tracebacks, some in mid-run.

    A class that is none was reported twice over, under the name of its default: "limit: _target_=os.getcwd: ...".
    """
    status = main(["sweep", "strategy=paged,contiguous", *TINY, line, "hydra.sweep.dir=out", "tracking=none"])
    assert status == 2
    assert said in capfd.readouterr().err
    assert not list(Path().glob("out/*/steps.csv"))


def test_a_run_with_a_mistake_leaves_no_directory(capfd: pytest.CaptureFixture[str]) -> None:
    """It was found in the run's process, when the directory was taken."""
    assert main(["run", *TINY, "workload.path=nowhere.csv", "hydra.run.dir=out"]) == 2
    assert "nowhere.csv: no such file" in capfd.readouterr().err
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_sweep_ends_in_tables_with_one_digest(capfd: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "strategy=glob(*)", *TINY, "timing=false", "page_group_bytes=4KiB", "hydra.sweep.dir=out"]
    assert main(command) == 0
    results = [json.loads(path.read_text()) for path in Path("out").glob("*/result.json")]
    assert len(results) == len(STRATEGIES)
    assert len({result["output_digest"] for result in results}) == 1
    assert Path("out/report.md").exists()
    assert len(list(Path("out/wandb").glob("offline-run-*"))) == len(STRATEGIES)
    assert "| vattention" in capfd.readouterr().out
