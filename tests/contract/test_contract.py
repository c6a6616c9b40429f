"""Every strategy that is shipped passes the contract; new files in conf/strategy are taken in by themselves."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import yaml

from kvlab.harness.check import check_installed, maker
from kvlab.strategies.contiguous import Contiguous
from kvlab.testing import StrategyContract, lives
from kvlab.testing.contract import acceptable
from kvlab.testing.memories import SHORT

FILES = sorted((Path(__file__).parents[2] / "conf" / "strategy").glob("*.yaml"))
NAMES = [path.stem for path in FILES]
ONE_OF_EACH = list({yaml.safe_load(path.read_text())["_target_"]: path.stem for path in FILES}.values())


@pytest.fixture(scope="module")
def make_for():
    return {name: maker([f"strategy={name}"]) for name in NAMES}


@pytest.fixture(scope="module")
def checked():
    """Two processes at work on all the checks of this module."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        yield {name: pool.submit(check_installed, name, 200, 400) for name in ONE_OF_EACH}


@pytest.mark.parametrize("name", NAMES)
def test_random_lives(make_for, name):
    report = lives(make_for[name], range(8), 50)
    assert report.lives == 8
    assert report.seen["admitted"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_as_many_lives_as_the_command_lives(checked, name):
    row = checked[name].result()
    assert row["status"] == "ok", row["reason"]
    assert row["exercised"]["steps"] == 200 * 400


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_drawn_histories(make_for, name):
    from kvlab.testing.machine import explore

    for setting in acceptable(make_for[name], SHORT):
        explore(lambda memory, make=make_for[name], s=setting: make(s._replace(memory=memory)), setting.memory, 60)


class TestTheBaseClass(StrategyContract):
    make = Contiguous
    seeds, steps, examples = 8, 30, 10
