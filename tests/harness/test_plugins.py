"""What other packages bring: strategies, workloads, policies; and that a broken one breaks nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvlab.errors import UsageError
from kvlab.harness import plugins
from kvlab.harness.cli import main
from kvlab.harness.compose import Composer, compose
from kvlab.harness.plan import make_plan

ARENA = '''"""Everything in one arena.

And more.
"""
from kvlab.strategies.paged import Paged

class Arena(Paged):
    def __init__(self, memory, block_size=16, arenas=2):
        super().__init__(memory, block_size)
'''
ARENA_YAML = "_target_: arena_plugin.arena.Arena\nblock_size: ${block_size}\narenas: 4\n"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """install(distribution, {file: text}, group=value ...): as pip leaves a package, entry points included."""
    place, before = tmp_path / "installed", set(sys.modules)
    place.mkdir()

    def write(distribution: str, files: dict[str, str], **points: str) -> None:
        for name, text in files.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            for folder in path.parents:
                if folder not in (place, *place.parents):
                    (folder / "__init__.py").touch()
            path.write_text(text)
        info = place / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"[kvlab.{group}]\n{line}\n" for group, line in points.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))

    monkeypatch.syspath_prepend(place)
    yield write
    for name in set(sys.modules) - before:
        if not name.startswith(("kvlab", "hydra")):
            del sys.modules[name]


@pytest.fixture
def arena(install: Install) -> None:
    """A package with a strategy, known by its class and once more by a file."""
    files = {"arena_plugin/arena.py": ARENA, "arena_plugin/conf/strategy/big_arena.yaml": ARENA_YAML}
    install(
        "arena-plugin", files, strategies="arena = arena_plugin.arena:Arena", conf="arena_plugin = arena_plugin.conf"
    )


@pytest.mark.usefixtures("arena")
def test_a_plugin_is_a_strategy_like_any_other() -> None:
    with Composer() as composer:
        arena = composer.compose(["strategy=arena", "block_size=32"])
        big = composer.compose(["strategy=big_arena", "strategy.arenas=8"])
    assert arena.config["strategy"] == {
        "name": "arena", "_target_": "arena_plugin.arena.Arena", "block_size": 32, "arenas": 2,
    }  # fmt: skip
    assert {"page_group_bytes"} <= set(arena.lacking)
    assert big.config["strategy"]["arenas"] == 8
    assert {"paged", "arena", "big_arena"} <= {item.name for item in plugins.installed()}


@pytest.mark.usefixtures("arena")
def test_the_list_shows_where_a_strategy_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["arena"]["from"] == "arena-plugin"
    assert rows["arena"]["what"] == "Everything in one arena."
    assert rows["big_arena"]["knobs"] == ["block_size", "strategy.arenas"]


def test_a_class_beside_a_file_of_its_name_adds_nothing(install: Install) -> None:
    files = {"arena_plugin/arena.py": ARENA, "arena_plugin/conf/strategy/arena.yaml": ARENA_YAML}
    install("arena-plugin", files, strategies="arena = arena_plugin.arena:Arena", conf="arena = arena_plugin.conf")
    assert [item.node["arenas"] for item in plugins.installed() if item.name == "arena"] == [4]
    assert compose(["strategy=arena"]).config["strategy"]["arenas"] == 4


# --- broken in every way

STRATEGY = "from kvlab.strategy import Strategy\nfrom kvlab.strategies.paged import Paged\n"
BROKEN = {  # module text -> what is said of it
    "raises": ("1 / 0", "cannot be imported: division by zero"),
    "exits": ("import sys\nsys.exit('no licence')", "cannot be imported: SystemExit: no licence"),
    "does not parse": ("class Mine(:", "cannot be imported: invalid syntax"),
    "is not there": ("class Other: ...", "has no attribute 'Mine'"),
    "needs what is missing": ("import no_such_library", "cannot be imported: No module named 'no_such_library'"),
    "no class": ("Mine = 3", "is no class"),
    "no strategy": ("class Mine: ...", "allowed is a subclass of kvlab.strategy.Strategy"),
    "not whole": (f"{STRATEGY}class Mine(Strategy):\n  longest = 4", "it lacks admit, extend, release, usage"),
    "takes no memory": (f"{STRATEGY}class Mine(Paged):\n  def __init__(self): ...", "too many positional arguments"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_class_is_one_line_that_names_it_and_no_other_strategy_suffers(
    kind: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = BROKEN[kind]
    install("broken-plugin", {"broken_plugin.py": text}, strategies="mine = broken_plugin:Mine")
    judge("mine", "broken-plugin", said, capsys)


FILES = {  # YAML text -> what is said of it
    "does not parse": ("_target_: [", "strategy/mine.yaml cannot be read: while parsing"),
    "is no text": ("_target_: \0", "strategy/mine.yaml cannot be read: unacceptable character"),
    "is empty": ("", "strategy/mine.yaml has no _target_"),
    "has no class": ("block_size: 4", "strategy/mine.yaml has no _target_"),
    "argument": ("_target_: mine_plugin.arena.Arena\nblocks: 4", "no such argument; Arena takes block_size, arenas"),
    "nowhere": ("_target_: mine_plugin.nowhere.Mine", "No module named 'mine_plugin.nowhere'"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_broken_file_is_one_line_that_names_it_and_no_other_strategy_suffers(
    kind: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = FILES[kind]
    files = {"mine_plugin/arena.py": ARENA, "mine_plugin/conf/strategy/mine.yaml": text}
    install("mine-plugin", files, conf="mine = mine_plugin.conf")
    judge("mine", "mine-plugin", said, capsys)


def test_an_argument_that_the_file_forgets(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    class_text = ARENA.replace("block_size=16, arenas=2", "arenas, block_size=16")
    files = {
        "mine_plugin/arena.py": class_text,
        "mine_plugin/conf/strategy/mine.yaml": "_target_: mine_plugin.arena.Arena",
    }
    install("mine-plugin", files, conf="mine = mine_plugin.conf")
    judge("mine", "mine-plugin", "cannot be called with (memory): missing a required argument: 'arenas'", capsys)


PACKAGES = {  # files -> what is said of the package
    "is not there": ({}, "names mine_plugin.conf, which cannot be imported: No module named 'mine_plugin'"),
    "raises": ({"mine_plugin/conf/__init__.py": "1 / 0"}, "which cannot be imported: division by zero"),
    "without its files": ({"mine_plugin/conf/__init__.py": ""}, "which holds no GROUP/NAME.yaml"),
}


@pytest.mark.parametrize("kind", PACKAGES)
def test_a_package_whose_files_cannot_be_found(kind: str, install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """It was a traceback, and then the end of every verb."""
    files, said = PACKAGES[kind]
    install("mine-plugin", files, conf="mine = mine_plugin.conf")
    judge("mine", "mine-plugin", said, capsys)


def judge(name: str, package: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The list names it and goes on, a run of it says the same, and another strategy composes."""
    assert main(["strategies"]) == 1
    listed = capsys.readouterr()
    (line,) = listed.err.splitlines()
    assert line.startswith(f"kvlab: {name} (from {package}): ")
    assert said in line
    assert "\npaged " in listed.out
    assert f"\n{name} " not in listed.out
    with Composer() as composer:
        with pytest.raises(UsageError) as caught:
            composer.compose([f"strategy={name}"])
        assert composer.compose(["strategy=paged"]).strategy == "paged"
    assert str(caught.value).startswith(f"strategy={name} (from {package}): ")
    assert said in str(caught.value)


def test_glob_leaves_out_what_is_broken_and_says_so(install: Install) -> None:
    install("broken-plugin", {"broken_plugin.py": "1 / 0"}, strategies="pagedish = broken_plugin:Mine")
    plan = make_plan(["strategy=glob(paged*)", "tracking=none"])
    assert [run.config["strategy"]["name"] for run in plan.runs] == ["paged"]
    (line,) = plan.left_out
    assert line.startswith("strategy=glob(paged*) leaves out strategy=pagedish (from broken-plugin): ")


def test_a_name_of_ours_stays_ours(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("arena-plugin", {"arena_plugin/arena.py": ARENA}, strategies="paged = arena_plugin.arena:Arena")
    files = {"pool_plugin/conf/workload/lognormal.yaml": "name: lognormal\n"}
    install("pool-plugin", files, conf="pool = pool_plugin.conf")
    assert compose(["strategy=paged"]).config["strategy"]["_target_"] == "kvlab.strategies.paged.Paged"
    assert "mu" in compose(["workload=lognormal"]).config["workload"]
    assert main(["strategies"]) == 1
    said = capsys.readouterr().err
    assert "kvlab: paged (from arena-plugin): strategy paged is kvlab's own; this one needs another name" in said
    assert "kvlab: workload=lognormal (from pool-plugin): workload lognormal is kvlab's own" in said


def test_a_name_that_two_packages_bring_is_neither_ones(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("arena-plugin", {"arena_plugin/arena.py": ARENA}, strategies="arena = arena_plugin.arena:Arena")
    files = {"b_plugin/conf/strategy/arena.yaml": ARENA_YAML, "b_plugin/conf/strategy/b.yaml": ARENA_YAML}
    install("b-plugin", files, conf="b = b_plugin.conf")
    with pytest.raises(UsageError, match="brings a strategy of this name, too; one of them has to go"):
        compose(["strategy=arena"])
    assert compose(["strategy=b"]).strategy == "b"
    assert main(["strategies"]) == 1
    said = capsys.readouterr().err
    assert "kvlab: arena (from arena-plugin): b-plugin brings" in said
    assert "kvlab: arena (from b-plugin): arena-plugin brings" in said


def test_an_unknown_name_lists_what_can_be_chosen_and_what_is_broken(install: Install) -> None:
    install("mine-plugin", {"mine_plugin/conf/strategy/mine.yaml": "["}, conf="mine = mine_plugin.conf")
    with pytest.raises(UsageError) as caught:
        compose(["strategy=minde"])
    said = str(caught.value)
    assert "paged" in said.partition("; not ")[0]
    assert "mine" not in said.partition("; not ")[0].partition("allowed is")[2]
    assert "; not mine (from mine-plugin): strategy/mine.yaml cannot be read" in said


# --- without a package


def test_a_class_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its constructor is the schema: it needs no block_size only because the default strategy has one."""
    path = list(sys.path)
    monkeypatch.setattr(sys, "path", path)
    (tmp_path / "my_rows.py").write_text(
        "from kvlab.strategies.contiguous import Contiguous\n"
        "class Mine(Contiguous):\n"
        "    def __init__(self, memory, rows, slack=4):\n"
        "        super().__init__(memory)\n"
    )
    composed = compose(["strategy._target_=my_rows.Mine", "strategy.rows=3"])
    assert composed.config["strategy"] == {"name": "mine", "_target_": "my_rows.Mine", "rows": 3, "slack": 4}
    assert "block_size" in composed.lacking
    with pytest.raises(UsageError, match=r"strategy\.rows"):
        compose(["strategy._target_=my_rows.Mine"])
    del sys.modules["my_rows"]


def test_a_file_in_the_current_directory_stands_in_for_no_installed_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "hydra.py").write_text("class Mine: ...")
    (tmp_path / "colorsys.py").write_text("class Mine: ...")
    for module in ("hydra", "colorsys"):
        with pytest.raises(UsageError, match=f"module '{module}' has no attribute 'Mine'"):
            compose([f"strategy._target_={module}.Mine"])


@pytest.mark.usefixtures("arena")
def test_a_class_given_by_hand_goes_by_its_own_name() -> None:
    config = compose(["strategy._target_=arena_plugin.arena.Arena"]).config
    assert config["strategy"]["name"] == "arena"


# --- workloads and policies


def test_a_policy_of_another_package(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "mine_plugin/policies.py": "class Oldest:\n    def choose(self, running, asker):\n        return running[0]\n",
        "mine_plugin/conf/victim/oldest.yaml": "_target_: mine_plugin.policies.Oldest",
        "mine_plugin/conf/admission/oldest.yaml": "_target_: mine_plugin.policies.Oldest",
    }
    install("mine-plugin", files, conf="mine = mine_plugin.conf")
    assert compose(["victim=oldest"]).config["victim"]["_target_"] == "mine_plugin.policies.Oldest"
    said = (
        "admission=oldest (from mine-plugin): admission._target_=mine_plugin.policies.Oldest: allowed is a class with"
    )
    with pytest.raises(UsageError) as caught:
        compose(["admission=oldest"])
    assert str(caught.value).startswith(said)
    assert main(["strategies"]) == 1
    assert said in capsys.readouterr().err
