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
MANY = [*((name, 50, 200) for name in NAMES), *((name, 200, 400) for name in ONE_OF_EACH)]  # lives, steps of each


@pytest.fixture(scope="module")
def make_for():
    return {name: maker([f"strategy={name}"]) for name in NAMES}


@pytest.fixture(scope="module")
def checked():
    """Two processes at work on all the checks of this module."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        yield {asked: pool.submit(check_installed, *asked) for asked in MANY}


@pytest.mark.parametrize("name", NAMES)
def test_random_lives(make_for, name):
    report = lives(make_for[name], range(8), 50)
    assert report.lives == 8
    assert report.seen["admitted"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("asked", MANY, ids="{0[0]}-{0[1]}x{0[2]}".format)
def test_many_random_lives(checked, asked):
    row = checked[asked].result()
    assert row["status"] == "ok", row["reason"]
    assert row["exercised"]["steps"] == asked[1] * asked[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_drawn_histories(make_for, name):
    from kvlab.testing.machine import explore

    for setting in acceptable(make_for[name], SHORT):
        explore(lambda memory, make=make_for[name], s=setting: make(s._replace(memory=memory)), setting.memory, 60)


class TestTheBaseClass(StrategyContract):
    make = Contiguous
    seeds, steps, examples = 8, 30, 10
