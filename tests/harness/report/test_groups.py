"""Which runs make a row: those that differ in the seed alone."""

from __future__ import annotations

import pytest

from kvlab.errors import UsageError
from kvlab.harness.groups import group, metrics, peers, varying
from kvlab.harness.results import load


def test_seeds_are_one_row_and_constants_no_column(sweep):
    rows = group(load(sweep)[0])
    assert [list(row.key) for row in rows] == [["strategy"]] * 3
    assert [(row.key["strategy"], len(row.runs)) for row in rows] == [
        ("contiguous", 3), ("paged", 3), ("vattention", 3)
    ]  # fmt: skip
    assert [run.seed for run in rows[0].runs] == [0, 1, 2]


def test_a_knob_one_strategy_lacks_splits_only_the_others(write_run):
    """block_size is no knob of contiguous: its one row must not be doubled by paged's sweep."""
    sweep = write_run("c", "contiguous").parent
    for size in (8, 16):
        write_run(f"p{size}", "paged", 0, {"block_size": size})
    rows = group(load(sweep)[0])
    assert [tuple(row.key.values()) for row in rows] == [("contiguous", None), ("paged", 8), ("paged", 16)]
    assert rows[1].label == "paged, block 8"


def test_what_another_key_implies_is_no_column(write_run):
    """Workloads differ in parameters of their own, and the default pool follows max_len."""
    sweep = write_run("a", config={"workload": {"name": "lognormal", "mu": 5.5}}).parent
    write_run("b", config={"workload": {"name": "uniform", "low": 1}})
    write_run("c", config={"workload": {"name": "uniform", "low": 1}, "max_len": 1024, "pool_bytes": 1 << 23})
    assert varying(load(sweep)[0]) == ["strategy", "workload", "max_len"]


def test_rows_to_compare_stand_together(write_run):
    sweep = write_run("a", "contiguous", 0, {"max_len": 512}).parent
    write_run("b", "contiguous", 0, {"max_len": 2048})
    write_run("c", "paged", 0, {"max_len": 512})
    rows = group(load(sweep)[0])
    assert [(row.key["max_len"], row.key["strategy"]) for row in rows] == [
        (512, "contiguous"), (512, "paged"), (2048, "contiguous")
    ]  # fmt: skip


def test_a_knob_of_a_strategy_is_how_memory_is_managed(write_run):
    """Rows that differ in a plugin's own knob were settings of their own: no figure showed them side by side."""
    sweep = write_run("c", "contiguous").parent
    for arenas in (2, 4):
        write_run(f"a{arenas}", config={"strategy": {"name": "arena", "arenas": arenas}})
    rows = group(load(sweep)[0])
    assert [row.short for row in rows] == ["arena, strategy.arenas 2", "arena, strategy.arenas 4", "contiguous"]
    assert {row.setting for row in rows} == {""}


def test_two_classes_of_one_name_are_two_rows(write_run):
    """A user's own Paged was pooled with the built-in one, as if it were another seed of it."""
    sweep = write_run("a", config={"strategy": {"name": "paged", "_target_": "kvlab.strategies.paged.Paged"}}).parent
    write_run("b", config={"strategy": {"name": "paged", "_target_": "mine.Paged"}})
    assert [len(row.runs) for row in group(load(sweep)[0])] == [1, 1]


def test_by_pools_what_it_does_not_name_and_refuses_unknown_keys(sweep):
    runs = load(sweep)[0]
    (row,) = group(runs, ["workload"])
    assert len(row.runs) == 9
    with pytest.raises(UsageError, match=r"--by wrokload: .*workload"):
        group(runs, ["wrokload"])


def test_spread_is_median_and_range_of_what_is_reported(write_run):
    sweep = write_run("a", seed=0, tokens_per_s=10.0).parent
    write_run("b", seed=1, tokens_per_s=30.0)
    write_run("c", seed=2, tokens_per_s=11.0)
    write_run("d", seed=3, tokens_per_s=None)
    (row,) = group(load(sweep)[0])
    assert row.spread("tokens_per_s") == (11.0, 10.0, 30.0, 3)
    assert row.spread("nothing") is None
    assert "timing_valid" not in metrics([row])


def test_peers_share_seed_and_workload_not_placement(write_run):
    sweep = write_run("a", "contiguous", 0).parent
    write_run("b", "paged", 0, {"block_size": 8})
    write_run("c", "paged", 1, {"block_size": 8})
    write_run("d", "paged", 0, {"block_size": 8, "dtype": "bfloat16"})
    a, b, c, d = load(sweep)[0]
    assert peers(a) == peers(b)
    assert len({peers(run) for run in (b, c, d)}) == 3
