"""What a sweep will run: merged, labelled, ordered."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.harness.plan import Plan, Planned, label_of, make_plan, order

GRID = (
    "strategy=contiguous,paged,vattention",
    "block_size=8,16,32",
    "max_len=512,2048",
    "workload=lognormal,azure_conv",
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan([*GRID, "hydra.sweep.dir=here"])


def test_runs_that_differ_in_a_missing_knob_are_one(plan: Plan) -> None:
    assert plan.combinations == 36
    assert len(plan.runs) == 20
    assert len({run.key for run in plan.runs}) == 20
    assert plan.line == ("36 combinations, 20 runs (16 duplicates: contiguous and vattention have no block_size)")
    assert plan.directory == Path("here")


def test_labels_say_what_was_varied(plan: Plan) -> None:
    labels = {run.label for run in plan.runs}
    assert len(labels) == 20
    assert "strategy=paged,block_size=8,max_len=512,workload=azure_conv" in labels
    assert "strategy=contiguous,max_len=512,workload=azure_conv" in labels
    assert not any("vattention,block_size" in label for label in labels)


def test_overrides_of_a_run_make_that_run_again(plan: Plan) -> None:
    run = next(run for run in plan.runs if run.config["strategy"]["name"] == "vattention")
    assert [again.key for again in make_plan(run.overrides).runs] == [run.key]


def test_two_knobs_are_both_explained() -> None:
    plan = make_plan(["strategy=paged,vattention", "block_size=8,16", "page_group_bytes=64KiB,2MiB"])
    assert plan.line.startswith("8 combinations, 4 runs (4 duplicates: ")
    assert "vattention has no block_size" in plan.line
    assert "paged has no page_group_bytes" in plan.line


def test_equal_values_are_merged_without_a_knob() -> None:
    assert make_plan(["seed=0,0", "tracking=none"]).line == "2 combinations, 1 run (1 duplicate)"


def test_seeds_are_outermost_and_strategies_are_shuffled_within() -> None:
    runs = make_plan(["strategy=contiguous,paged,vattention", "seed=3,1,2,4", "max_len=512,2048"]).runs
    seeds = [run.config["seed"] for run in runs]
    assert seeds == sorted(seeds, key=[3, 1, 2, 4].index)
    assert [run.config["max_len"] for run in runs[:6]] == [512] * 3 + [2048] * 3
    cells = [tuple(run.config["strategy"]["name"] for run in runs[start : start + 3]) for start in range(0, 24, 3)]
    assert all(sorted(cell) == ["contiguous", "paged", "vattention"] for cell in cells)
    assert len(set(cells)) > 1, "the same order each time is no shuffle"


def test_the_order_does_not_depend_on_that_of_the_values() -> None:
    one, two = make_plan(["strategy=paged,contiguous"]).runs, make_plan(["strategy=contiguous,paged"]).runs
    assert [run.key for run in one] == [run.key for run in two]


def test_nothing_is_lost_by_ordering(plan: Plan) -> None:
    assert sorted(run.key for run in order(reversed(plan.runs))) == sorted(run.key for run in plan.runs)


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        (["strategy=paged", "seed=1"], "strategy=paged"),
        (["+strategy=../../etc", "seed=1"], "strategy=.._.._etc"),
        (["strategy=a b$(c)`d`"], "strategy=a_b_c_d_"),
        (["strategy=" + "\u4e00" * 200], "strategy=_"),
        (["strategy=" + "x" * 500], "strategy=" + "x" * 111),
        (["seed=1"], "run"),
    ],
)
def test_labels_are_safe(overrides: list[str], label: str) -> None:
    assert label_of(overrides, {"strategy"}) == label


def test_runs_whose_labels_would_be_the_same_are_told_apart() -> None:
    runs: list[Planned] = make_plan(["workload=lognormal", "workload.path=null,'a b','a_b'"]).runs
    assert len({run.label for run in runs}) == 3
