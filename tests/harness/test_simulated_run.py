"""`executor=simulated` from the command line to a table: labelled, repeatable, and refused in one line."""

from __future__ import annotations

import csv
import json

import pytest

from kvlab import simulate
from kvlab.errors import UsageError
from kvlab.harness.cli import main
from kvlab.harness.compose import compose
from kvlab.harness.goodput import goodput
from kvlab.harness.results import Run
from kvlab.record.step import Step
from kvlab.run import execute

WORDS = [
    "executor=simulated", "model=llama_3_8b", "gpu=a100_80", "dtype=bfloat16", "max_len=2048", "workload=sharegpt",
    "workload.num_requests=300", "timing=false", "tracking=none",
]  # fmt: skip


def run(tmp_path, *words):
    return execute(compose([*WORDS, *words]).config, tmp_path)


@pytest.mark.parametrize("strategy", ["paged", "contiguous", "vattention", "vattention_ahead", "prefix", "buddy"])
def test_runs_of_every_kind_end_and_repeat(tmp_path, strategy):
    words = [f"strategy={strategy}", "pool_bytes=4GiB", "page_group_bytes=2097152"]
    first, second = run(tmp_path, *words), run(tmp_path, *words)
    assert first == second
    assert (first["status"], first["simulated"], first["deterministic"]) == ("ok", True, True)
    assert first["num_finished"] + first["num_refused"] == first["num_requests"] == 300
    assert first["utilization"] + sum(first["waste"].values()) == pytest.approx(1)
    assert first["tokens_per_s"] > 0


def test_paging_holds_more_requests_than_rows_do(tmp_path):
    paged, rows = (run(tmp_path, f"strategy={name}", "pool_bytes=4GiB") for name in ("paged", "contiguous"))
    assert paged["mean_batch_size"] > 2 * rows["mean_batch_size"]
    assert paged["tokens_per_s"] > rows["tokens_per_s"]


def test_long_runs_leave_short_files(tmp_path, monkeypatch):
    monkeypatch.setattr(simulate, "SERIES_ROWS", 64)
    monkeypatch.setattr(simulate, "REQUEST_ROWS", 10)
    result = run(tmp_path, "strategy=paged", "pool_bytes=4GiB")
    steps = list(csv.DictReader((tmp_path / "steps.csv").read_text().splitlines()))
    assert 32 <= len(steps) <= 64
    assert set(steps[0]) == {"step", *Step._fields}
    assert sum(float(row["dt_s"]) for row in steps) == pytest.approx(result["duration_s"])
    seconds = sum(float(row["dt_s"]) * float(row["token_state"]) for row in steps)
    assert seconds / result["duration_s"] / (4 << 30) == pytest.approx(result["utilization.whole"])
    assert len((tmp_path / "requests.csv").read_text().splitlines()) == 11


@pytest.mark.parametrize("words", [(), ("workload.n=3",), ("strategy=prefix",)])
def test_goodput_is_what_the_requests_file_says(tmp_path, words):
    words = [
        "workload.num_requests=100",
        "workload.rate=20",
        "pool_bytes=2GiB",
        "slo.ttft_s=0.1",
        "slo.tpot_s=0.03",
        *words,
    ]
    result = run(tmp_path, *words)
    there = Run(tmp_path, "ok", "", result, {"slo.ttft_s": 0.1, "slo.tpot_s": 0.03})
    assert result["goodput"] == goodput(there).share
    assert 0 < result["goodput"] < 1
    without = run(tmp_path, *(word for word in words if "slo" not in word))
    assert without["goodput"] == without["num_finished"] / without["num_requests"]


def test_the_command_and_the_report_say_that_it_is_simulated(tmp_path, capsys):
    place = tmp_path / "one"
    assert main(["run", *WORDS, "strategy=paged", "workload.num_requests=20", f"hydra.run.dir={place}"]) == 0
    out, err = capsys.readouterr()
    assert "SIMULATED" in out
    assert "SIMULATED on a100_80" in err
    assert json.loads((place / "result.json").read_text())["simulated"] is True
    assert main(["report", str(place)]) == 0
    assert "executor SIMULATED (a100_80, a100_paper, published)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["engine.temperature=1"], "engine.temperature"),
        (["pool_bytes=200GiB"], "a pool of 200 GiB: allowed is .* what gpu=a100_80 leaves beside model=Llama-3-8B"),
        (["model=llama_2_70b", "max_len=1024"], "gpu=a100_80: model=Llama-2-70B leaves no room"),
        (["tensor_parallel=3"], "tensor_parallel=3: allowed is"),
        (["engine.clock=steps"], "engine.clock=steps: allowed with executor=real only"),
        (["workload.rate=nan"], "workload.rate=nan: allowed is a number above 0"),
        (["workload.rate=1e-300"], "workload.rate=1e-300: allowed is a number above 0"),
        (["max_len=9000"], "max_len=9000: allowed with this model is at most 8192"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(tmp_path, words, line):
    """A clock of steps was ignored, and the seconds were shown as steps; a rate that is no number was none."""
    with pytest.raises(UsageError, match=line):
        run(tmp_path, "strategy=paged", *words)


def test_a_pool_in_which_nobody_fits_is_refused(tmp_path):
    result = run(tmp_path, "strategy=contiguous", "pool_bytes=16MiB")
    assert (result["status"], result["num_refused"]) == ("refused", 300)
    assert "no request fits" in result["reason"]


def test_a_run_of_which_max_len_refuses_every_request_is_refused(tmp_path):
    """Its status was ok, with a row of zeros for a result; a real run is refused."""
    words = ["workload=fixed", "workload.prompt_len=2048", "workload.output_len=1", "workload.num_requests=20"]
    for executor in (["executor=simulated"], ["executor=real", "model=tiny", "dtype=float32"]):
        words_of_run = [word for word in WORDS if executor == ["executor=simulated"] or not word.startswith("gpu=")]
        result = execute(compose([*words_of_run, *words, *executor, "strategy=paged"]).config, tmp_path)
        assert (result["status"], result["num_refused"]) == ("refused", 20)
        assert result["reason"] == "every request is longer than max_len=2,048"
        assert not list(tmp_path.iterdir())


def test_real_runs_take_no_simulated_knobs(tmp_path):
    with pytest.raises(UsageError, match="allowed with executor=simulated only"):
        compose(["model=tiny", "dtype=float64", "tensor_parallel=2"])
