"""`kvlab new-strategy`: a package that works at once, and names that cannot be."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from kvlab.harness import new_strategy
from kvlab.harness.cli import main
from kvlab.strategy import Strategy
from kvlab.testing import lives


@pytest.fixture
def zebra(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["new-strategy", "striped_zebra", "--dir", "somewhere/zebra"]) == 0
    assert "pip install -e somewhere/zebra" in capsys.readouterr().out
    return tmp_path / "somewhere" / "zebra"


def test_nothing_of_the_template_s_name_is_left(zebra: Path) -> None:
    paths = [path for path in zebra.rglob("*") if path.is_file()]
    text = "\n".join([str(path.relative_to(zebra)) + "\n" + path.read_text() for path in paths])
    assert not re.search("mine", text, re.IGNORECASE)
    assert "class StripedZebra(Strategy)" in text
    assert "class TestStripedZebra(StrategyContract)" in text
    assert "kvlab sweep strategy=striped_zebra,paged" in text


def test_the_package_s_data_and_entry_points_are_there(zebra: Path) -> None:
    """A file of configuration that is not among the package's data is missing once it is installed."""
    project = tomllib.loads((zebra / "pyproject.toml").read_text())
    (module,) = project["project"]["entry-points"]["kvlab.conf"].values()
    folder = zebra / "src" / module.replace(".", "/")
    (pattern,) = project["tool"]["setuptools"]["package-data"][module]
    assert [path.name for path in folder.glob(pattern)] == ["striped_zebra.yaml"]
    assert (folder / "__init__.py").exists()


def test_it_passes_the_contract_as_it_is(zebra: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(zebra / "src")
    made: type[Strategy] = importlib.import_module("striped_zebra.strategy").StripedZebra
    report = lives(lambda setting: made(setting.memory, block_size=setting.block_size), range(14), 60)  # type: ignore[call-arg]
    assert report.seen["extend refused"]
    for name in [name for name in sys.modules if name.startswith("striped_zebra")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Zebra", "'Zebra': allowed is a name in lower case, as in my_arena"),
        ("ze-bra", "'ze-bra': allowed is a name in lower case"),
        ("../zebra", "'../zebra': allowed is a name in lower case"),
        ("nan", "'nan': allowed is a name in lower case"),
        ("class", "class: is a word of Python"),
        ("true", "true: is a word of Python"),
        ("memory", "memory: its class would be called Memory, as kvlab's own is"),
        ("paged", "paged: a strategy of this name comes from kvlab"),
        ("numpy", "numpy: a Python module of this name is installed"),
        ("there", "there: is there already; give another place with --dir DIR"),
    ],
)
def test_a_name_that_cannot_be_is_one_line(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    assert main(["new-strategy", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kvlab: {said}")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_the_class_is_called_like_the_strategy() -> None:
    assert new_strategy.class_name("my_first_arena2") == "MyFirstArena2"
