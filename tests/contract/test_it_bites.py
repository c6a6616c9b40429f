"""Faults planted in shipped strategies, one at a time: the contract catches each within a few lives.

A fault is an edit of a strategy's file (faults.toml). Its name says what went wrong; the edit says where.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from kvlab.testing import LifeError, lives

ROOT = Path(__file__).parents[2]
FILES = {  # a strategy's module, and what it is built from, in the order of import
    "contiguous": ["contiguous"],
    "paged": ["swapped_blocks", "paged"],
    "token_pool": ["swapped_blocks", "paged", "token_pool"],
    "prefix": ["swapped_blocks", "paged", "idle_blocks", "cached_blocks", "places", "prefix"],
    "radix": ["swapped_blocks", "paged", "idle_blocks", "cached_blocks", "radix"],
    "buddy": ["buddy"],
    "growing": ["growing"],
    "vattention": ["rows", "vattention"],
}
CLASSES = {"vattention": "VAttention", "token_pool": "TokenPool"}
FAULTS = tomllib.loads((Path(__file__).parent / "faults.toml").read_text())["fault"]


@pytest.fixture
def planted(monkeypatch):
    """The class of a strategy whose files, or those that it is built from, were edited; undone afterwards."""

    def load(name: str, edits: list[list[str]]):
        pairs = list(edits)
        sources = [(ROOT / "strategies" / f"{file}.py").read_text() for file in FILES[name]]
        found = [sum(source.count(old) for source in sources) for old, _ in edits]
        # In two places it would be an edit of whichever file comes first, and another fault than its name says.
        assert all(times == 1 for times in found), f"to be found once: {edits}, found {found} times"
        for file in FILES[name]:
            path = ROOT / "strategies" / f"{file}.py"
            source = path.read_text()
            for pair in list(pairs):
                if source.count(pair[0]) == 1:
                    source = source.replace(*pair)
                    pairs.remove(pair)
            module = ModuleType(f"kvlab.strategies.{file}")
            monkeypatch.setitem(sys.modules, module.__name__, module)
            exec(compile(source, str(path), "exec"), module.__dict__)
        assert not pairs, f"to be edited once, but not found once: {pairs}"
        return getattr(module, CLASSES.get(name, name.title()))

    return load


def arguments(name: str, setting) -> dict:
    if name == "growing":
        return {"mode": "double"}
    return {"block_size": setting.block_size} if name in ("paged", "prefix", "radix") else {}


@pytest.mark.parametrize("name", FILES)
def test_unedited_strategies_pass(planted, name):
    cls = planted(name, [])
    lives(lambda setting: cls(setting.memory, **arguments(name, setting)), range(8), 40)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault['strategy']}: {fault['name']}")
def test_fault_is_caught(planted, fault):
    name, cls = fault["strategy"], planted(fault["strategy"], fault["edits"])
    more = fault.get("arguments", {})
    with pytest.raises(LifeError):
        lives(lambda setting: cls(setting.memory, **arguments(name, setting), **more), range(140), 80)
