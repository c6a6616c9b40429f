"""Windows, groups of layers and pools: lives of a strategy that has several, and faults that it may have."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kvlab.testing import LifeError, lives
from kvlab.testing.machine import HistoryError, explore
from kvlab.testing.memories import SETTINGS

FILE = Path(__file__).parent / "two_groups.py"
FAULTS = {  # name -> what stands there, what stands there instead, pools
    "block freed that the window still reads": (
        "length - self.window + 1) //", "length - self.window + 2) //", 1,
    ),
    "nothing behind the window is freed": (
        "            self.free[group.pool] += table.close(seq)[::-1]",
        "            self.free[group.pool] += table.close(seq)[::-1] if group.window is None else []", 2,
    ),
    "both groups in the same blocks": (
        "        for table, group in zip(self.tables, self.groups, strict=True):\n            table.open",
        "        same = self._take(0, need)\n        for table, group in zip(self.tables, self.groups, strict=True):\n"
        "            self._take = lambda pool, need: same\n            table.open", 1,
    ),
    "block of the window's pool taken from the other": (
        "self._take(group.pool, need))\n        return Grant", "self._take(0, need))\n        return Grant", 2,
    ),
    "window's table does not grow": (
        "            table.append(seq, self._take(group.pool, need))",
        "            table.append(seq, self._take(group.pool, need)) if group.window is None else 0", 1,
    ),
}  # fmt: skip


def loaded(edit: tuple[str, str] | None = None) -> ModuleType:
    source = FILE.read_text()
    if edit:
        assert source.count(edit[0]) == 1
        source = source.replace(*edit)
    module = sys.modules["two_groups"] = ModuleType("two_groups")  # where pickle, which is fast, finds its class
    exec(compile(source, str(FILE), "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("pools", [1, 2])
def test_two_groups_pass(pools):
    cls = loaded().TwoGroups
    report = lives(lambda setting: cls(setting.memory, setting.block_size, pools), range(9), 60)
    assert set(report.memories) == {setting.name for setting in SETTINGS if len(setting.memory.windows) > 1}
    assert report.seen["forked"]
    assert report.seen["preempted"]


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name):
    before, after, pools = FAULTS[name]
    cls = loaded((before, after)).TwoGroups
    with pytest.raises(LifeError):
        lives(lambda setting: cls(setting.memory, setting.block_size, pools), range(30), 60)


def test_the_program_of_a_failure_names_the_group():
    before, after, pools = FAULTS["block freed that the window still reads"]
    cls = loaded((before, after)).TwoGroups
    with pytest.raises(HistoryError) as failed:
        explore(lambda memory: cls(memory, 4, pools), SETTINGS[0].memory, 60)
    assert "windows=(None, 6)" in str(failed.value)
    assert re.search(r"strategy\.slots\(\d+, 1, ", str(failed.value))  # in group 1
