"""Every setting of every strategy passes the contract: those of conf/strategy, and others that no file has."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from kvlab.harness.check import check_installed, maker
from kvlab.testing import lives

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "conf" / "strategy").glob("*.yaml"))
OTHERS = (
    "growing_step strategy.step=3",
    "radix strategy.partial=copy",
    "radix strategy.partial=copy strategy.evict=block",
    "radix strategy.partial=copy eviction=lfu",
    "prefix eviction=priority",
    "prefix eviction=page_aware eviction.blocks=3",
    "prefix_vllm_queue eviction=fifo",
    "prefix_dedupe block_size=1",
    "vattention_ahead strategy.map_ahead=3",
)
SEEDS, STEPS = 50, 200


@pytest.fixture(scope="module")
def checked():
    """Two processes at work on all the settings, the costly ones first."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        yield {words: pool.submit(check_installed, words, SEEDS, STEPS) for words in (*OTHERS, *NAMES[::-1])}


@pytest.mark.slow
@pytest.mark.parametrize("words", [*NAMES, *OTHERS])
def test_many_random_lives(checked, words):
    row = checked[words].result()
    assert row["status"] == "ok", row["reason"]
    assert row["exercised"]["steps"] == SEEDS * STEPS


@pytest.mark.parametrize("words", OTHERS)
def test_random_lives(words):
    name, *overrides = words.split()
    assert lives(maker([f"strategy={name}", *overrides]), range(8), 50).lives == 8


def test_nobody_is_asked_to_grow_beyond_what_was_declared():
    """The last sequence of a life had to reach `longest` whatever its limit: the example's arena, right, failed."""
    path = ROOT / "examples/arena/src/arena/strategy.py"
    spec = importlib.util.spec_from_file_location("arena_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["arena_example"] = importlib.util.module_from_spec(spec)  # where pickle finds its class
    spec.loader.exec_module(module)
    assert lives(lambda s: module.Arena(s.memory), range(16), 40).lives == 16
