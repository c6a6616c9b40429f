"""Every strategy that is shipped passes the contract; new files in conf/strategy are taken in by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.harness.check import maker
from kvlab.harness.compose import Composer
from kvlab.strategies.contiguous import Contiguous
from kvlab.testing import StrategyContract, lives
from kvlab.testing.contract import acceptable
from kvlab.testing.memories import SHORT

NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / "conf" / "strategy").glob("*.yaml"))


@pytest.fixture(scope="module")
def make_for():
    with Composer() as composer:
        yield {name: maker(composer, [f"strategy={name}"]) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_random_lives(make_for, name):
    report = lives(make_for[name], range(7), 60)
    assert report.lives == 7
    assert report.seen["admitted"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_random_lives(make_for, name):
    report = lives(make_for[name], range(50), 200)
    assert report.seen["steps"] == 50 * 200


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_drawn_histories(make_for, name):
    from kvlab.testing.machine import explore

    for setting in acceptable(make_for[name], SHORT):
        explore(lambda memory, make=make_for[name], s=setting: make(s._replace(memory=memory)), setting.memory, 60)


class TestTheBaseClass(StrategyContract):
    make = Contiguous
    seeds, steps, examples = 7, 30, 10
