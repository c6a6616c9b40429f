"""Overrides in, one plain configuration out; and each mistake a line that says what is allowed."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import pytest

from kvlab.build import build_strategy
from kvlab.errors import UsageError
from kvlab.eviction import LFU
from kvlab.harness import plugins
from kvlab.harness.compose import Composer
from kvlab.model import shapes

CONF = Path(plugins.__file__).parents[1] / "conf"
STRATEGIES = sorted(path.stem for path in CONF.glob("strategy/*.yaml"))
WORKLOADS = sorted(path.stem for path in CONF.glob("workload/*.yaml"))
REAL = ("model", "strategy", "workload", "admission", "victim", "preemption", "attention", "layout")
SIMULATED = ("gpu", "vmm", "cost", "eviction", "forecast", "tracking")


def choices() -> list[list[str]]:
    """Every file of conf once, those of several groups in one composition: each takes a tenth of a second and more."""
    files: dict[str, list[str]] = {}
    for path in sorted(CONF.glob("*/*.yaml")):
        files.setdefault(path.parent.name, []).append(f"{path.parent.name}={path.stem}")
    real, simulated = (zip_longest(*(files.pop(group) for group in groups)) for groups in (REAL, SIMULATED))
    found = [[*filter(None, column)] for column in real]
    found += [["executor=simulated", "strategy=prefix", *filter(None, column)] for column in simulated]
    return found + [[line] for lines in files.values() for line in lines]


@pytest.mark.parametrize("together", choices(), ids=" ".join)
def test_every_file_in_conf_composes(together: list[str], composer: Composer) -> None:
    needed = ["forecast=oracle"] if "admission=oracle" in together else []
    composed = composer.compose([*together, *needed])
    for choice in together:
        group, _, name = choice.partition("=")
        if group not in ("executor", "tracking", "experiment", "preset"):
            assert shapes.choice(composed.config[group]["name"]) == name


def test_the_configuration_is_plain_and_named(composer: Composer) -> None:
    config = composer.compose(["max_len=512"]).config
    assert config["strategy"] == {
        "name": "paged", "_target_": "kvlab.strategies.paged.Paged", "block_size": 16,
    }  # fmt: skip
    assert config["workload"]["name"] == "lognormal"
    assert config["workload"]["cap"] == 512
    assert "hydra" not in config
    assert "tracking" not in config


@pytest.mark.parametrize(
    ("strategy", "block_size", "page_group_bytes"),
    [("paged", 32, None), ("contiguous", None, None), ("vattention", None, 2097152)],
)
def test_knobs_that_a_strategy_lacks_are_left_out(
    strategy: str, block_size: int | None, page_group_bytes: int | None, composer: Composer
) -> None:
    config = composer.compose([f"strategy={strategy}", "block_size=32", "page_group_bytes=2MiB"]).config
    assert (config["block_size"], config["page_group_bytes"]) == (block_size, page_group_bytes)


def test_an_eviction_order_is_built_with_the_strategy_that_keeps_one(composer: Composer) -> None:
    config = composer.compose(["strategy=radix", "eviction=lfu"]).config
    assert isinstance(build_strategy(config, 1024, 2, 2**20).idle, LFU)
    assert composer.compose(["strategy=paged", "eviction=lfu"]).config["eviction"] is None


def test_a_pool_counted_in_blocks_keeps_their_size(composer: Composer) -> None:
    config = composer.compose(["strategy=contiguous", "pool_blocks=64", "block_size=32"]).config
    assert (config["pool_blocks"], config["block_size"]) == (64, 32)


@pytest.mark.parametrize(
    ("text", "size"), [("720MiB", 754974720), ("1.5GiB", 1610612736), ("4096", 4096), ("1e6", 1000000)]
)
def test_sizes_have_units(text: str, size: int, composer: Composer) -> None:
    assert composer.compose([f"pool_bytes={text}"]).config["pool_bytes"] == size


@pytest.mark.parametrize(("word", "value"), [("off", False), ("false", False), ("on", True)])
def test_flags_have_words(word: str, value: bool, composer: Composer) -> None:
    assert composer.compose([f"timing={word}"]).config["timing"] is value


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "workload=nothing",
            f"workload=nothing: allowed is {', '.join(WORKLOADS)}",
        ),
        ("blok_size=3", "blok_size: no such name; did you mean block_size? (allowed: strategy, model"),
        ("engine.foo=3", "engine.foo: no such name (allowed in engine: max_seqs, chunk, token_budget, max_preemptions"),
        ("workload.nun_requests=3", "did you mean workload.num_requests?"),
        ("max_len.x=3", "max_len has no parts"),
        ("strategy.slots=3", "strategy.slots: no such name (allowed in strategy: _target_, block_size)"),
        ("+strategy.slots=3", "strategy.slots: no such argument; Paged takes block_size"),
        ("+foo=3", "foo: no such name; allowed is strategy, model"),
        ("+engine.foo=3", "engine.foo: no such name; allowed is"),
        ("strategy=null", f"strategy=null: allowed is {', '.join(STRATEGIES)}"),
        ("strategy=", f"strategy=: allowed is {', '.join(STRATEGIES)}"),
        ("strategy=[paged]", f"strategy=[paged]: allowed is {', '.join(STRATEGIES)}"),
        ("~strategy", "it is needed"),
        ("engine=3", "it is needed"),
        ("foo", "'foo' is not an override; write name=value"),
        ("=3", "'=3' is not an override; write name=value"),
        ("a==3", "'a==3' is not an override; write name=value"),
        ("workload.path=a(b).csv", "special characters in quotes"),
        ("engine={a: 1}", "engine={a: 1}: not possible; write engine=VALUE, or engine.NAME=VALUE"),
        ("tracking.mode=offline", "tracking.mode: no such name"),
        ("max_len=abc", "max_len=abc: allowed is a whole number, 2 or more"),
        ("max_len=1e3", "max_len=1000.0: allowed is a whole number"),
        ("block_size=0", "block_size=0: allowed is a whole number, 1 or more"),
        ("block_size=-4", "block_size=-4: allowed is a whole number, 1 or more"),
        ("block_size=true", "block_size=True: allowed is a whole number"),
        ("seed=[1,2]", "seed=[1, 2]: allowed is a whole number"),
        ("pool_bytes=12QiB", "pool_bytes=12QiB: allowed is bytes, or a size such as 720MiB"),
        ("pool_bytes=-1", "pool_bytes=-1: allowed is bytes"),
        ("pool_bytes=0", "pool_bytes=0: allowed is bytes"),
        ("page_group_bytes=1000", "page_group_bytes=1000: allowed is a multiple of 4096 bytes"),
        ("dtype=fp32", "dtype=fp32: allowed is float32, bfloat16, float64"),
        ("dtype=float64", "dtype=float64: allowed with model=tiny only"),
        ("device=tpu", "device=tpu: allowed is cpu"),
        ("timing=perhaps", "timing=perhaps: allowed is true or false"),
        ("engine.max_seqs=0", "engine.max_seqs=0: allowed is a whole number, 1 or more"),
        ("engine.max_seqs=99999999999999999999", "allowed is at most 65536"),
        ("engine.threads=99999999999999999999", "allowed is at most 1024"),
        ("model.path=", "model.path=: allowed is a path, or null"),
        ("workload.path=[a]", "workload.path=['a']: allowed is a path, or null"),
        ("engine.temperature=-1", "engine.temperature=-1: allowed is a number, 0 or more"),
        ("engine.temperature=nan", "engine.temperature=nan: allowed is a number, 0 or more"),
        ("hydra/sweeper=basic", "allowed of Hydra's own settings is hydra.run.dir, hydra.sweep.dir"),
        ("hydra.searchpath=[file:///nowhere]", "path=/nowhere is not available"),
        ("strategy._target_=nowhere.Mine", "cannot be imported: No module named 'nowhere'"),
        ("strategy._target_=kvlab.errors.UsageError", "allowed is a subclass of kvlab.strategy.Strategy"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_line_that_says_what_is_allowed(line: str, said: str, composer: Composer) -> None:
    with pytest.raises(UsageError) as caught:
        composer.compose([line])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pool_is_given_once(composer: Composer) -> None:
    with pytest.raises(UsageError, match="both are given"):
        composer.compose(["pool_bytes=1MiB", "pool_blocks=3"])


def test_sweeps_expand_as_hydra_says(composer: Composer) -> None:
    assert composer.expand(["strategy=glob(*)"]) == [(f"strategy={name}",) for name in STRATEGIES]
    assert composer.expand(["seed=range(0,2)", "max_len=choice(512,1024)", "block_size=8"]) == [
        ("seed=0", "max_len=512", "block_size=8"),
        ("seed=0", "max_len=1024", "block_size=8"),
        ("seed=1", "max_len=512", "block_size=8"),
        ("seed=1", "max_len=1024", "block_size=8"),
    ]


def test_one_value_may_need_another_that_is_swept(composer: Composer) -> None:
    """The fixed overrides alone, without those that are swept, were composed first and refused."""
    combinations = composer.expand(["dtype=float64", "model=choice(tiny)", "model.layers=1", "seed=0,1"])
    assert [composer.compose(lines).config["dtype"] for lines in combinations] == ["float64", "float64"]


def test_files_are_the_same_from_everywhere(composer: Composer, tmp_path: Path) -> None:
    """A sweep that was taken up again from another folder looked for its trace there."""
    config = composer.compose(["workload.path=a.csv", "model.path='~/b'"]).config
    assert config["workload"]["path"] == str(tmp_path / "a.csv")
    assert config["model"]["path"] == str(Path.home() / "b")


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    """A folder of configuration that someone keeps beside their results."""
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "blocks.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - override /workload: fixed\n"
        "max_len: 512\n"
        "hydra:\n  sweeper:\n    params:\n      block_size: 8,16\n      seed: range(0,2)\n"
    )
    return f"hydra.searchpath=[file://{tmp_path / 'mine'}]"


def test_an_experiment_brings_its_values(experiment: str, composer: Composer) -> None:
    combinations = composer.expand(["experiment=blocks", "seed=7", experiment])
    assert combinations == [("experiment=blocks", f"block_size={size}", "seed=7", experiment) for size in (8, 16)]
    config = composer.compose(combinations[0]).config
    assert (config["workload"]["name"], config["max_len"], config["block_size"]) == ("fixed", 512, 8)
