"""Presets of real systems: every one is built, what is given beside one wins, and the result says so."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import yaml

from kvlab.build import AXES, build_axis, build_strategy
from kvlab.errors import UsageError
from kvlab.harness import plugins, run, verbs
from kvlab.harness.compose import Composer
from kvlab.harness.groups import group
from kvlab.harness.plan import make_plan
from kvlab.harness.presets import Preset
from kvlab.harness.results import Run, named

CONF = Path(plugins.__file__).parents[1] / "conf"
PRESETS = sorted(path.stem for path in CONF.glob("preset/*.yaml"))
CHOICES = [f"{axis}={path.stem}" for axis in AXES for path in sorted(CONF.glob(f"{axis}/*.yaml"))]
NEEDS = {"admission=oracle": ["forecast=oracle"]}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_built_and_is_what_its_file_says(name: str, composer: Composer) -> None:
    config = composer.compose([f"preset={name}", "model=tiny"]).config
    file = Preset.of(name, yaml.safe_load((CONF / f"preset/{name}.yaml").read_text()))
    assert (config["preset"], config["preset_overridden"]) == (name, [])
    assert {group: config[group]["name"] for group in file.groups if config[group]} == dict(file.groups)
    built = build_strategy(config, token_bytes=512, layers=2, pool_bytes=2**22)
    assert built.memory.chunk == min(config["engine"]["chunk"] or 4096, 4096)
    for axis in AXES:
        build_axis(config, axis)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_axis_is_built(choice: str, composer: Composer) -> None:
    axis = choice.partition("=")[0]
    config = composer.compose([choice, "model=tiny", *NEEDS.get(choice, [])]).config
    assert hasattr(build_axis(config, axis), AXES[axis])


def test_every_axis_says_where_it_comes_from() -> None:
    for choice in CHOICES:
        axis, _, name = choice.partition("=")
        assert (CONF / axis / f"{name}.yaml").read_text().startswith("# "), choice


def test_what_costs_decide_is_the_models(composer: Composer) -> None:
    def built(*more: str):
        config = composer.compose(["preemption=cost_based", "executor=simulated", "dtype=bfloat16", *more]).config
        return build_axis(config, "preemption")

    small, large = built("model=llama_2_7b"), built("model=llama_2_13b")
    assert 1.8 < large.compute_s / small.compute_s < 2.0
    assert large.move_s / small.move_s == pytest.approx(40 * 40 / (32 * 32))
    assert built("model=llama_2_7b", "tensor_parallel=2").move_s == pytest.approx(small.move_s / 2)
    assert built("model=llama_2_7b", "preemption.token_bytes=1000").move_s == pytest.approx(2 * 1000 / 32e9)


def test_a_true_peak_needs_true_lengths(composer: Composer) -> None:
    with pytest.raises(UsageError, match="admission=oracle: needs forecast=oracle, here limit"):
        composer.compose(["admission=oracle"])


@pytest.mark.parametrize(
    ("beside", "overridden"),
    [
        (["strategy=paged"], ["strategy"]),
        (["strategy=prefix_vllm_queue"], []),
        (["victim=priority", "engine.token_budget=64"], ["victim", "engine.token_budget"]),
        (["block_size=32"], ["block_size"]),
        (["block_size=16", "seed=3"], []),
        (["admission.chunk=5"], ["admission"]),
        (["strategy._target_=kvlab.strategies.paged.Paged"], ["strategy"]),
    ],
)  # fmt: skip
def test_what_is_given_beside_a_preset_wins_and_is_told(
    beside: list[str], overridden: list[str], composer: Composer
) -> None:
    config = composer.compose(["preset=vllm_v1", *beside]).config
    assert (config["preset"], config["preset_overridden"]) == ("vllm_v1", overridden)
    given = dict(line.split("=") for line in beside)
    assert config["strategy"]["name"] == given.get(
        "strategy", "paged" if "_target_" in beside[0] else "prefix_vllm_queue"
    )
    assert config["block_size"] == int(given.get("block_size", 16))
    assert config["victim"]["name"] == given.get("victim", "newest")
    assert config["engine"]["token_budget"] == int(given.get("engine.token_budget", 2048))


def test_the_order_of_overrides_does_not_matter(composer: Composer) -> None:
    assert composer.compose(["strategy=radix", "preset=vllm_v0"]).config == (
        composer.compose(["preset=vllm_v0", "strategy=radix"]).config
    )


def test_an_experiment_beside_a_preset_wins(tmp_path: Path, composer: Composer) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /strategy: radix\nengine:\n  token_budget: 7\n"
    (tmp_path / "experiment/mine.yaml").write_text(text)
    config = composer.compose(["experiment=mine", "preset=vllm_v1", f"hydra.searchpath=[file://{tmp_path}]"]).config
    assert (config["strategy"]["name"], config["engine"]["token_budget"]) == ("radix", 7)
    assert config["preset_overridden"] == ["strategy", "engine.token_budget"]


@pytest.mark.parametrize("none", [[], ["preset=null"], ["~preset"]])
def test_without_a_preset_a_run_is_what_it_was(none: list[str], composer: Composer) -> None:
    config = composer.compose(none).config
    assert not {"preset", "preset_overridden"} & config.keys()
    assert (config["strategy"]["name"], config["admission"]["name"]) == ("paged", "prompt_plus_one")


def test_a_wrong_preset_is_one_line_with_those_there_are(composer: Composer) -> None:
    with pytest.raises(UsageError) as caught:
        composer.compose(["preset=vllm"])
    assert str(caught.value) == f"preset=vllm: allowed is {', '.join(PRESETS)}"


def test_help_names_every_preset() -> None:
    assert [name for name in PRESETS if name not in verbs.OVERRIDES] == []


def test_a_sweep_counts_what_it_varies_as_given() -> None:
    plan = make_plan(["preset=vllm_v0,sglang", "strategy=paged,radix", "model=tiny", "tracking=none"])
    told = {(r.config["preset"], r.config["strategy"]["name"]): r.config["preset_overridden"] for r in plan.runs}
    assert told == {
        ("vllm_v0", "paged"): [], ("vllm_v0", "radix"): ["strategy"],
        ("sglang", "paged"): ["strategy"], ("sglang", "radix"): ["strategy"],
    }  # fmt: skip


def test_what_the_strategy_lacks_makes_no_second_run() -> None:
    lines = ["preset=sglang,vllm_v0", "strategy=contiguous", "block_size=8,16", "eviction=lru,lfu", "tracking=none"]
    runs = make_plan([*lines, "model=tiny"]).runs
    assert sorted((run.config["preset"], *run.config["preset_overridden"]) for run in runs) == [
        ("sglang", "strategy"), ("vllm_v0", "strategy"),
    ]  # fmt: skip


@pytest.mark.slow
def test_the_experiment_runs_every_preset() -> None:
    runs = make_plan(["experiment=presets", "tracking=none"]).runs
    assert sorted(run.config["preset"] for run in runs) == PRESETS
    assert all(run.config["preset_overridden"] == [] for run in runs)


def test_the_result_says_so(tmp_path: Path) -> None:
    overrides = [
        "preset=vllm_v0", "strategy=token_pool", "model=tiny", "dtype=float64", "workload=fixed",
        "workload.num_requests=2", "workload.prompt_len=9", "workload.output_len=4", "max_len=32",
        "engine.clock=steps", f"hydra.run.dir={tmp_path / 'run'}",
    ]  # fmt: skip
    assert run.run(argparse.Namespace(overrides=overrides, json=False)) == 0
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["preset"], result["preset_overridden"]) == ("vllm_v0", ["strategy"])


def test_a_table_of_presets_is_by_preset() -> None:
    with Composer() as composer:
        runs = [
            Run(Path(name), "ok", "", {}, named(composer.compose([f"preset={name}"]).config))
            for name in ("orca_max", "orca_pow2", "vllm_v0")
        ]
    assert [row.label for row in group(runs)] == ["orca_max, buddy", "orca_pow2, buddy", "vllm_v0, paged"]
