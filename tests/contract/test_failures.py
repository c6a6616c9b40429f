"""How a failure is told: a short program that repeats it, or a command with the seed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field

import pytest

from kvlab.harness.cli import main
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.paged import Paged
from kvlab.testing import LifeError, lives
from kvlab.testing.machine import HistoryError, explore
from kvlab.testing.memories import SHORT
from kvlab.testing.snapshot import Snapshot, difference

LEAKY = '''
from kvlab.strategies.contiguous import Contiguous
class Leaky(Contiguous):
    """Loses a row with every second release."""
    releases = 0
    def release(self, seq):
        self.releases += 1
        gone = self.table.close(seq)
        self.free += gone if self.releases % 2 else []
class Shuffling(Contiguous):
    def admit(self, arrival, new, leave=0):
        grant = super().admit(arrival, new, leave)
        if grant is None:
            self.row_order = getattr(self, "row_order", 0) + 1
        return grant
class Raising(Contiguous):
    def release(self, seq):
        super().release(seq)
        return 1 // 0
'''


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """The module of strategies above, importable here and in a child."""
    (tmp_path / "broken_ones.py").write_text(LEAKY)
    monkeypatch.syspath_prepend(tmp_path)
    import broken_ones

    yield broken_ones
    del sys.modules["broken_ones"]


@pytest.mark.parametrize(("name", "rule"), [("Leaky", "usage"), ("Shuffling", "refusal"), ("Raising", "ZeroDivision")])
def test_the_printed_program_fails_in_the_same_way(broken, tmp_path, name, rule):
    with pytest.raises(HistoryError) as failed:
        explore(getattr(broken, name), SHORT[0].memory, 30)
    program = str(failed.value)
    assert len([line for line in program.splitlines() if line.startswith(("strategy.", "device."))]) <= 6, program
    (tmp_path / "repeat.py").write_text(program)
    child = subprocess.run([sys.executable, "repeat.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert child.returncode == 1
    assert rule in program
    assert ("AssertionError" if rule != "ZeroDivision" else "ZeroDivisionError") in child.stderr, child.stderr


def test_the_same_seed_fails_at_the_same_place(broken):
    texts = []
    for _ in range(2):
        with pytest.raises(LifeError) as failed:
            lives(lambda setting: broken.Leaky(setting.memory), [3], 50)
        texts.append(str(failed.value))
    assert texts[0] == texts[1]


def test_check_says_how_to_repeat_a_failure(broken, capsys):
    assert main(["check", "strategy._target_=broken_ones.Leaky", "--seeds", "4", "--steps", "50"]) == 1
    said = capsys.readouterr().out
    command = next(line for line in said.splitlines() if "repeat:" in line).partition("kvlab ")[2]
    assert command.startswith("check strategy._target_=broken_ones.Leaky --seed ")
    assert main(command.split()) == 1
    assert said.partition("BROKEN")[2] == capsys.readouterr().out.partition("BROKEN")[2]


@pytest.mark.parametrize("word", ["pool_bytes=1", "seed=17", "model=tiny", "executor=simulated", "max_len=8"])
def test_check_takes_nothing_that_would_change_nothing(word, capsys):
    """seed=17 lived all the lives instead of that one; a pool of one byte was as good as any."""
    assert main(["check", "paged", word]) == 2
    said = capsys.readouterr().err
    assert f"kvlab: {word}: it would change nothing; allowed is strategy.NAME, block_size, eviction" in said
    assert ("did you mean --seed ?" in said) == (word == "seed=17")


def test_check_takes_installed_names_and_overrides(capsys):
    assert main(["check", "paged", "contiguous", "block_size=3", "--seeds", "2", "--steps", "20", "--json"]) == 0
    assert '"strategy": "paged block_size=3"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "allowed is"),
        (["block_size=4"], "name a strategy"),
        (["paged", "--seeds", "0"], "1 or more"),
        (["paged", "--steps", "few"], "whole number"),
    ],
)
def test_wrong_use_of_check_is_one_line(capsys, words, said):
    assert main(["check", *words]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_a_strategy_that_no_memory_suits_is_said_to_be_so():
    def make(setting):
        raise ValueError("needs the moon")

    with pytest.raises(ValueError, match="small: needs the moon"):
        lives(make, range(3), 10)


@dataclass
class Box:
    held: dict = field(default_factory=lambda: {1: [2], 3: [4]})
    line: deque = field(default_factory=lambda: deque([1, 2]))
    seen: set = field(default_factory=lambda: {1, 2})


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda box: box.held.update({1: box.held.pop(1)}), ".held"),
        (lambda box: box.held[3].append(5), ".held[3]"),
        (lambda box: box.line.rotate(), ".line[0]"),
        (lambda box: box.seen.add(3), ".seen"),
        (lambda box: setattr(box, "more", 1), ""),
    ],
)
def test_a_difference_is_found_wherever_it_lies(change, where):
    box = Box()
    change(box)
    found = difference(vars(Box()), vars(box), "")
    assert found is not None
    assert found.startswith(where), found
    assert difference(vars(Box()), vars(Box()), "") is None


def test_a_strategy_that_cannot_be_pickled_is_compared_too():
    class Local(Paged):
        """Made in a function, which pickle cannot find."""

    strategy = Local(SHORT[0].memory, 4)
    now = Snapshot(strategy)
    assert now.difference(strategy) is None
    strategy.free.reverse()
    assert now.difference(strategy).startswith(".free[0]")
    assert now.copy().free == strategy.free[::-1]


def test_contiguous_is_not_to_blame():
    assert lives(lambda setting: Contiguous(setting.memory), range(3), 20).lives == 3


def test_without_hypothesis_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "kvlab.testing.machine")
    with pytest.raises(ImportError, match=r"pip install 'kvlab\[test\]'"):
        importlib.import_module("kvlab.testing.machine")
