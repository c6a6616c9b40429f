"""Strategies that other packages bring."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from kvlab.errors import UsageError
from kvlab.harness import plugins
from kvlab.harness.cli import main
from kvlab.harness.compose import Composer, compose

PLUGIN = '''"""Everything in one arena. And a second line."""
from kvlab.strategies.paged import Paged

class Arena(Paged):
    def __init__(self, memory, block_size=16, arenas=2):
        super().__init__(memory, block_size)
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with a strategy, known by a class and once more by a file of configuration."""
    package = tmp_path / "arena_plugin"
    (package / "conf" / "strategy").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "conf" / "__init__.py").write_text("")
    (package / "arena.py").write_text(PLUGIN)
    yaml = "_target_: arena_plugin.arena.Arena\nblock_size: ${block_size}\narenas: 4\n"
    (package / "conf" / "strategy" / "big_arena.yaml").write_text(yaml)
    monkeypatch.syspath_prepend(tmp_path)
    points = {
        "kvlab.strategies": [EntryPoint("arena", "arena_plugin.arena:Arena", "kvlab.strategies")],
        "kvlab.conf": [EntryPoint("arena", "arena_plugin.conf", "kvlab.conf")],
    }
    monkeypatch.setattr(plugins, "entry_points", lambda group: points[group])
    yield
    ConfigStore.instance().repo["strategy"].pop("arena.yaml", None)
    for name in [name for name in sys.modules if name.startswith("arena_plugin")]:
        del sys.modules[name]


@pytest.mark.usefixtures("plugin")
def test_a_plugin_is_a_strategy_like_any_other() -> None:
    with Composer() as composer:
        arena = composer.compose(["strategy=arena", "block_size=32"])
        big = composer.compose(["strategy=big_arena", "strategy.arenas=8"])
    assert arena.config["strategy"] == {
        "name": "arena", "_target_": "arena_plugin.arena.Arena", "block_size": 32, "arenas": 2,
    }  # fmt: skip
    assert arena.lacking == ("page_group_bytes",)
    assert big.config["strategy"]["arenas"] == 8
    assert {"paged", "arena", "big_arena"} <= {item.name for item in plugins.installed()}


def test_a_broken_plugin_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_plugin.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = {"kvlab.strategies": [EntryPoint("broken", "broken_plugin:Broken", "kvlab.strategies")], "kvlab.conf": []}
    monkeypatch.setattr(plugins, "entry_points", lambda group: points[group])
    try:
        assert compose(["strategy=paged"]).strategy == "paged"
        with pytest.raises(UsageError, match="broken_plugin.Broken: cannot be imported: division by zero"):
            compose(["strategy=broken"])
        assert main(["strategies"]) == 1
    finally:
        ConfigStore.instance().repo["strategy"].pop("broken.yaml")
    said = capsys.readouterr()
    assert "kvlab: broken (from broken_plugin): strategy._target_=broken_plugin.Broken: cannot" in said.err
    assert "paged" in said.out


@pytest.mark.usefixtures("plugin")
def test_a_class_given_by_hand_goes_by_its_own_name() -> None:
    config = compose(["strategy._target_=arena_plugin.arena.Arena"]).config
    assert config["strategy"]["name"] == "arena"


def test_a_plugin_whose_folder_is_gone_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a traceback."""
    points = {"kvlab.strategies": [], "kvlab.conf": [EntryPoint("gone", "gone_plugin.conf", "kvlab.conf")]}
    monkeypatch.setattr(plugins, "entry_points", lambda group: points[group])
    assert main(["strategies"]) == 2
    said = "kvlab: gone_plugin.conf: its entry point kvlab.conf names gone_plugin.conf, which is not there"
    assert capsys.readouterr().err.startswith(said)
