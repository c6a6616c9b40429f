"""The experiments on the simulated clock: their files compose, and their scripts read a (small) sweep of theirs."""

from __future__ import annotations

import importlib
import json
import math
import re
from pathlib import Path

import pytest

from kvlab.errors import UsageError
from kvlab.harness import here, job, plan, rundir
from kvlab.harness.compose import Composer
from kvlab.harness.goodput import goodput, served
from kvlab.harness.manifest import Manifest
from kvlab.harness.results import Run

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "experiments/simulated"
SMALL = {  # axes cut short, so that each sweep takes a second or so
    "capacity": ["model=yi_6b", "gpu=a100_40", "page_group_bytes=65536", "workload.num_requests=40"],
    "max_len": ["max_len=2048,32768", "strategy=contiguous,paged", "pool_bytes=8GiB", "workload.num_requests=60"],
    "block_size": ["block_size=16,256", "cost.kernel=flash_attn", "pool_bytes=2GiB",
                   "workload.num_requests=90"],
    "phase_diagram": ["workload.mean=256", "workload.sigma=0.2", "workload.shared_prefix=0.0,0.9", "pool_bytes=2GiB",
                      "cost.kernel=flashinfer",
                      "strategy=contiguous,paged,prefix", "workload.num_requests=90"],
    "cliff": ["workload.rate=0.05,40", "strategy=contiguous,paged", "pool_bytes=4GiB",
             "workload.num_requests=90"],
    "tenant": ["workload.tenant_prompt_len=300,100000", "engine.chunk=null", "strategy=paged",
               "workload.num_requests=200"],
    "presets": ["preset=orca_max,vllm_v0", "workload.num_requests=150"],
}  # fmt: skip


@pytest.fixture(scope="module")
def scripts():
    """By name, as Python runs them: with their own folder to import from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield {name: importlib.import_module(name) for name in [*SMALL, "readings"]}


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """name -> directory of its small sweep, run in this process when first asked for."""
    done: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in done:
            done[name] = sweep(name, tmp_path_factory.mktemp(name))
        return done[name]

    return directory


def sweep(name: str, directory: Path) -> Path:
    overrides = [f"experiment={name}", *SMALL[name], "tracking=none"]
    planned = plan.make_plan([*overrides, f"hydra.sweep.dir={directory}"])
    manifest = Manifest(directory, planned.runs, overrides, ROOT)
    for run in planned.runs:
        assert (run.config["executor"], run.config["timing"]) == ("simulated", False)
        assert job.run_job(manifest.prepare(run)) == 0
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_page_says_that_it_is_simulated_and_how_to_make_it_again(name, scripts, sweeps, tmp_path):
    path = scripts["readings"].write(name, sweeps(name), tmp_path, scripts[name].make)
    text = path.read_text()
    assert path == tmp_path / f"{name}.md"
    assert "**SIMULATED**" in text
    assert f"    kvlab sweep experiment={name} {SMALL[name][0]}" in text
    assert f"    python experiments/simulated/{name}.py DIR" in text
    assert f"]({name}.png)" in text
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert len(rows(text)) >= 2
    assert not re.search(r"\bnan\b", text)


def rows(text: str) -> list[dict[str, str]]:
    """The lines of the tables in a page."""
    found: list[dict[str, str]] = []
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or set(line) <= set("|-: "):
            head = head if cells else []
        elif head:
            found.append(dict(zip(head, cells, strict=True)))
        else:
            head = cells
    return found


def page(name, scripts, sweeps):
    return scripts[name].make(scripts["readings"].finished(sweeps(name)))


def test_a_larger_max_len_costs_rows_and_not_blocks(scripts, sweeps):
    batches = {row["mean batch, sequences"]: row for row in rows(page("max_len", scripts, sweeps).text)[:2]}
    assert float(batches["contiguous"]["32,768"].split()[0]) < float(batches["contiguous"]["2,048"].split()[0]) / 4
    assert batches["paged"]["32,768"] == batches["paged"]["2,048"]


def test_behind_the_edge_goodput_falls_though_throughput_does_not(scripts, sweeps):
    found = {(row["strategy"], row["load, requests/s"]): row for row in rows(page("cliff", scripts, sweeps).text)}
    for strategy in ("contiguous", "paged"):
        calm, flooded = found[strategy, "0.05"], found[strategy, "40"]
        assert float(flooded["output tokens/s"]) > float(calm["output tokens/s"])
        assert float(flooded["within both limits, %"]) < float(calm["within both limits, %"]) / 2
    assert found["paged: edge", "0.05"]


def test_a_tenant_is_served_before_those_who_come_after_it(scripts, sweeps):
    little, large = rows(page("tenant", scripts, sweeps).text)
    assert (little["tenant's prompt"], large["tenant's prompt"]) == ("300", "100,000")
    assert float(large["others' first token p50, s"]) >= float(little["others' first token p50, s"])
    assert float(large["most, s"]) > 2 * float(little["most, s"])
    assert large["preempted elders"] == "0"


def test_a_preset_that_reserves_less_runs_more(scripts, sweeps):
    most, on_demand = rows(page("presets", scripts, sweeps).text)
    assert (most["preset"], on_demand["preset"]) == ("orca_max", "vllm_v0")
    assert float(on_demand["mean batch"]) > 2 * float(most["mean batch"])
    assert float(on_demand["internal %"]) == 0 < float(most["internal %"])


def test_a_cell_is_won_by_whoever_brings_most_tokens(scripts, sweeps):
    for row in rows(page("phase_diagram", scripts, sweeps).text):
        rates = {name: float(row[f"{name}, tokens/s"].replace(",", "")) for name in ("contiguous", "paged", "prefix")}
        first, second, _ = sorted(rates, key=lambda name: -rates[name])
        margin = float(row["margin"].split()[0])
        assert margin == pytest.approx(100 * (rates[first] / rates[second] - 1), abs=0.15)
        assert row["winner"].startswith("tie") if margin < 0.95 else row["winner"] == first or margin < 1.05


def test_who_shares_wins_where_there_is_much_to_share(scripts, sweeps):
    shared = next(row for row in rows(page("phase_diagram", scripts, sweeps).text) if row["shared"] == "0.9")
    assert shared["winner"] == "prefix"


def test_larger_blocks_waste_more_and_find_less(scripts, sweeps):
    small, large = rows(page("block_size", scripts, sweeps).text)
    assert float(large["waste, %"]) > float(small["waste, %"])
    assert float(large["hit rate, %"]) < float(small["hit rate, %"])


def test_a_sweep_that_is_not_whole_is_refused(scripts, sweeps, tmp_path):
    source = sweeps("cliff")
    for path in source.rglob("*"):
        if path.is_file() and path.parent != sorted(source.glob("*/"))[0]:
            (tmp_path / path.relative_to(source)).parent.mkdir(exist_ok=True)
            (tmp_path / path.relative_to(source)).write_bytes(path.read_bytes())
    with pytest.raises(UsageError, match="3 of 4 runs are there; take it up"):
        scripts["readings"].finished(tmp_path)


def test_a_measured_run_is_refused(scripts, tmp_path):
    (tmp_path / "one").mkdir()
    rundir.write_json(tmp_path / "one/result.json", {"schema_version": 1, "status": "ok", "simulated": False})
    with pytest.raises(UsageError, match="measured runs among them: one"):
        scripts["readings"].finished(tmp_path)


def test_goodput_counts_those_within_both_limits_by_the_time_in_which_requests_came(tmp_path):
    lines = [  # id, arrival, prompt, output, first token, finish, preemptions
        "0,0.0,10,11,0.5,1.5,0,finished,",  # 0.5 s, 0.1 s a token: just within
        "1,2.0,10,11,2.6,3.0,0,finished,",  # first token late
        "3,4.0,10,11,4.1,9.1,2,finished,",  # tokens late
        "2,5.0,10,1,5.4,5.4,0,finished,",  # one token: nothing to be late with
        "4,8.0,10,3,8.1,,0,failed,no room",
    ]
    (tmp_path / "requests.csv").write_text(
        "id,arrival_s,prompt_len,output_len,first_token_s,finish_s,preemptions,outcome,reason\n" + "\n".join(lines)
    )
    config = {"slo.ttft_s": 0.5, "slo.tpot_s": 0.1}
    run = Run(tmp_path, "ok", "", {"num_finished": 4, "num_requests": 8}, config)
    good = goodput(run)
    assert (good.share, good.per_s) == (pytest.approx(2 / 8), pytest.approx(2 / 8.0))
    assert goodput(Run(tmp_path, "ok", "", run.values, {"slo.ttft_s": 0.5})).share == pytest.approx(3 / 8)
    assert goodput(Run(tmp_path, "ok", "", run.values, {})).share == pytest.approx(4 / 8)
    requests = served(tmp_path)
    assert requests.preemptions_N.tolist() == [0, 0, 0, 2, 0]
    assert math.isnan(requests.finish_N[4])


def test_goodput_counts_requests_and_not_their_sequences(tmp_path):
    """A request of two sequences counted twice: more than all requests could be served well."""
    head = "id,arrival_s,prompt_len,output_len,first_token_s,finish_s,preemptions,outcome,reason,branch\n"
    late, good = "0,0.0,10,11,0.5,{},0,finished,,{}\n", "1,4.0,10,11,4.5,5.0,0,finished,,{}\n"
    lines = [late.format(1.0, 0), late.format(9.0, 1), good.format(0), good.format(1)]
    (tmp_path / "requests.csv").write_text(head + "".join(lines))
    run = Run(tmp_path, "ok", "", {"num_finished": 2, "num_requests": 2}, {"slo.tpot_s": 0.1})
    assert (goodput(run).share, goodput(run).per_s) == (1 / 2, 1 / 4.0)


def test_goodput_without_arrivals_or_requests_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no requests\.csv there"):
        served(tmp_path)
    lines = "id,arrival_s,prompt_len,output_len,first_token_s,finish_s,preemptions\n0,0,9,2,1,2,0\n1,0,9,2,1,2,0\n"
    (tmp_path / "requests.csv").write_text(lines)
    with pytest.raises(UsageError, match="all requests came at once"):
        goodput(Run(tmp_path, "ok", "", {"num_finished": 2, "num_requests": 2}, {}))
    with pytest.raises(UsageError, match="holds the first requests alone"):
        goodput(Run(tmp_path, "ok", "", {"num_finished": 3, "num_requests": 3}, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_number_of_runs_is_what_the_file_says(name):
    said = re.search(r"(\d+) runs\.", (ROOT / f"conf/experiment/{name}.yaml").read_text())
    assert said
    assert len(plan.make_plan([f"experiment={name}", "tracking=none"]).runs) == int(said[1])


@pytest.mark.parametrize("name", SMALL)
def test_the_committed_page_is_of_that_sweep(name):
    text = (SCRIPTS / f"{name}.md").read_text()
    assert f"kvlab sweep experiment={name} " in text
    assert "SIMULATED" in text
    assert (SCRIPTS / f"{name}.png").exists()


def test_a_pool_that_is_only_counted_keeps_no_run_waiting(monkeypatch):
    """Simulated runs went one at a time: their pools were held against this machine's memory."""
    monkeypatch.setattr(here, "available_bytes", lambda: 4 * 2**30)
    monkeypatch.setattr(here, "cores", lambda: 2)
    runs = plan.make_plan(["experiment=cliff", *SMALL["cliff"], "pool_bytes=9GiB", "tracking=none"]).runs
    assert here.at_once(runs) == 2


def test_limits_that_are_not_given_leave_a_run_as_it_was():
    with Composer() as composer:
        plain, limited = composer.compose([]).config, composer.compose(["slo.ttft_s=2"]).config
        assert "slo" not in plain
        assert limited == {**plain, "slo": {"ttft_s": 2.0, "tpot_s": None}}
        with pytest.raises(UsageError, match="slo.ttft_s=-1: allowed is a number, 0 or more"):
            composer.compose(["slo.ttft_s=-1"])
        assert json.dumps(limited)
