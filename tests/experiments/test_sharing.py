"""Samples, beams and a shared system prompt: the experiments' files, small runs of them, and pages from their lines."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from kvlab.errors import UsageError
from kvlab.harness import job, plan
from kvlab.harness.compose import Composer
from kvlab.harness.manifest import Manifest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("sharing", "samples_real", "system_prompt")
TINY = ["model=tiny", "dtype=float64", "engine.clock=steps", "engine.threads=1"]
SMALL = {
    "sharing": ["workload=alpaca_sosp23", "workload.num_requests=25", "case=parallel_4,beam_2", "seed=0"],
    "sharing_real": [*TINY, "executor=real", "workload.num_requests=2", "block_size=4", "case=beam_2", "seed=0"],
    "samples_real": [*TINY, "workload.num_requests=2", "seed=0"],
    "system_prompt": [*TINY, "workload.num_requests=5", "seed=0"],
}


@pytest.fixture(scope="module")
def scripts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "experiments")
        yield {name: importlib.import_module(name) for name in (*NAMES, "pages")}


@pytest.fixture(scope="module")
def lines(scripts, tmp_path_factory, one_thread):
    """name of an experiment -> the lines of a small sweep of its, run in this process when first asked for."""
    done: dict[str, list[dict[str, str]]] = {}

    def of(name: str) -> list[dict[str, str]]:
        if name not in done:
            directory = sweep(name, tmp_path_factory.mktemp(name))
            script = scripts[name.removesuffix("_real") if name == "sharing_real" else name]
            done[name] = scripts["pages"].collect([directory], script.line_of)
        return done[name]

    return of


def sweep(name: str, directory: Path) -> Path:
    overrides = [f"experiment={name}", *SMALL[name], "tracking=none"]
    planned = plan.make_plan([*overrides, f"hydra.sweep.dir={directory}"])
    manifest = Manifest(directory, planned.runs, overrides, ROOT)
    for run in planned.runs:
        assert job.run_job(manifest.prepare(run)) == 0
    return directory


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_made_of_its_lines_alone(name, scripts):
    committed = scripts["pages"].read(ROOT / f"experiments/{name}.csv")
    assert (ROOT / f"experiments/{name}.md").read_text() == scripts[name].page_of(committed)


def test_cases_go_together_and_are_no_part_of_a_run():
    with Composer() as composer:
        searched = composer.compose(["experiment=sharing", "case=beam_4", "workload=sharegpt_sosp23"]).config
        sampled = composer.compose(["experiment=sharing", "case=parallel_6"]).config
    assert [(each["workload"]["n"], each["workload"]["beams"]) for each in (sampled, searched)] == [(6, 0), (1, 4)]
    assert sampled["workload"]["rate"] > searched["workload"]["rate"]
    assert not {"case", "cases"} & (sampled.keys() | searched.keys())


def test_a_case_that_is_not_there_is_refused():
    with Composer() as composer, pytest.raises(UsageError, match="parallel_3"):
        composer.compose(["experiment=sharing", "case=parallel_3"])


def test_the_pool_is_the_papers():
    with Composer() as composer:
        config = composer.compose(["experiment=sharing"]).config
    assert config["pool_blocks"] * config["block_size"] == 15_744


def test_samples_save_less_than_their_share_of_the_prompt_and_beams_more(scripts, lines):
    parallel, beam = (float(scripts["pages"].picked(lines("sharing"), kind=kind)[0]["saved_percent"])
                      for kind in ("parallel", "beam"))  # fmt: skip
    assert 0 < parallel < 25 < beam < 50


def test_beams_of_a_real_model_share(lines):
    (line,) = lines("sharing_real")
    assert (line["executor"], line["width"]) == ("real", "2")
    assert 0 < float(line["saved_percent"]) < 50
    assert int(line["forks"]) > 0


def test_four_answers_hold_less_than_four_times_the_blocks_and_say_the_same(scripts, lines):
    by_way = {line["way"]: line for line in lines("samples_real")}
    one, four, apart = (int(by_way[way]["peak_blocks"]) for way in scripts["samples_real"].WAYS.values())
    assert one < four < 2 * one
    assert apart == 4 * one
    same = scripts["samples_real"].same_as_apart(lines("samples_real"))
    assert [same(by_way[way]) for way in scripts["samples_real"].WAYS.values()] == [False, True, True]
    assert by_way["four"]["different_answers"] == by_way["four"]["answers"] == "8"
    assert int(by_way["four, nothing shared"]["prefill_tokens"]) == 4 * int(by_way["four"]["prefill_tokens"])


def test_a_shared_system_prompt_is_computed_once(lines):
    by_strategy = {line["strategy"]: line for line in lines("system_prompt")}
    paged = by_strategy.pop("paged")
    assert paged["computed"] == paged["prompt_tokens"]
    for line in by_strategy.values():
        assert int(line["computed"]) == int(line["prompt_tokens"]) - 4 * 400
        assert (line["same"], line["wrong"], line["output_digest"]) == ("5", "0", paged["output_digest"])
        assert int(line["peak_held_tokens"]) < int(paged["peak_held_tokens"]) / 2


def test_a_committed_page_shows_what_was_to_be_shown(scripts):
    """Parallel sampling is near the paper's figures, four answers say the same, the system prompt is computed once."""
    read, picked = scripts["pages"].read, scripts["pages"].picked
    simulated = picked(read(ROOT / "experiments/sharing.csv"), model="OPT-13B")
    assert scripts["sharing"].within(simulated) == {"2": True, "4": True, "6": True}
    assert {line["seed"] for line in simulated} == {"0", "1", "2"}
    samples = read(ROOT / "experiments/samples_real.csv")
    assert all(map(scripts["samples_real"].same_as_apart(samples), picked(samples, way="four")))
    prompts = read(ROOT / "experiments/system_prompt.csv")
    for line in prompts:
        once = int(line["prompt_tokens"]) - 31 * 400 * (line["strategy"] != "paged")
        assert once - 31 <= int(line["computed"]) <= once
        assert line["wrong"] == "0"


def test_a_sweep_that_is_not_whole_is_refused(scripts, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one/result.json").write_text(json.dumps({"status": "ok"}))
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": [{}, {}]}))
    with pytest.raises(UsageError, match="1 runs that are not there"):
        scripts["pages"].finished(tmp_path)
