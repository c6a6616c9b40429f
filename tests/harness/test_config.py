"""`kvlab config show` and the groups in --help: what people read is what a run is made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvlab.harness import cli, config, plugins
from kvlab.harness.compose import Composer
from kvlab.harness.group_help import GROUPS, groups_text

CONF = Path(plugins.__file__).parents[1] / "conf"


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["preset=vllm_v1", "strategy=contiguous"],
        ["experiment=sharing"],
        ["model.path=/a dir/of 1: model", "seed=3"],
    ],
)
def test_what_is_shown_is_the_configuration(overrides: list[str], composer: Composer) -> None:
    composed = composer.compose(overrides).config
    text = config.show(composed, dict.fromkeys(("seed", "strategy.name", "engine.clock"), "said so"))
    assert yaml.safe_load(text) == composed
    assert text.count("# said so") == 3


def test_each_value_says_who_set_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "max_len=512", "preset=vllm_v1", "strategy=contiguous", "model=tiny"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for line in (
        "name: contiguous  # strategy=contiguous", "max_len: 512  # max_len=512", "cap: 512  # max_len=512",
        "token_budget: 2048  # preset=vllm_v1", "block_size: null  # strategy=contiguous", "seed: 0",
    ):  # fmt: skip
        assert line in lines, line


def test_an_override_that_needs_a_later_one_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "admission=oracle", "forecast=oracle"]) == 0
    assert "name: oracle  # forecast=oracle" in capsys.readouterr().out


def test_a_wrong_value_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "block_size=0"]) == 2
    assert capsys.readouterr().err == "kvlab: block_size=0: allowed is a whole number, 1 or more\n"


def test_help_names_every_group_and_every_choice(capsys: pytest.CaptureFixture[str]) -> None:
    folders = {path.parent.name for path in CONF.glob("*/*.yaml")}
    assert folders == set(GROUPS)
    words = set(groups_text().replace(",", " ").split())
    assert [path.stem for path in CONF.glob("*/*.yaml") if path.stem not in words] == []
    assert cli.main(["run", "--help"]) == 0
    assert groups_text() in capsys.readouterr().out
