"""Settings of strategies that no YAML file has as its own: they pass the contract too."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kvlab.eviction import FIFO, LFU, Priority
from kvlab.strategies.growing import Growing
from kvlab.strategies.prefix import Prefix
from kvlab.strategies.radix import Radix
from kvlab.strategies.vattention import VAttention
from kvlab.testing import lives

CASES = {
    "radix partial=copy": lambda s: Radix(s.memory, s.block_size, partial="copy"),
    "radix partial=copy evict=block": lambda s: Radix(s.memory, s.block_size, evict="block", partial="copy"),
    "radix eviction=lfu": lambda s: Radix(s.memory, s.block_size, LFU(), partial="copy"),
    "prefix eviction=priority": lambda s: Prefix(s.memory, s.block_size, Priority()),
    "prefix eviction=fifo one_queue": lambda s: Prefix(s.memory, s.block_size, FIFO(), one_queue=True),
    "vattention map_ahead=1": lambda s: VAttention(s.memory, map_ahead=1),
    "vattention map_ahead=3": lambda s: VAttention(s.memory, map_ahead=3),
    "growing step=3": lambda s: Growing(s.memory, "step", 3),
}


@pytest.mark.parametrize("name", CASES)
def test_random_lives(name):
    assert lives(CASES[name], range(14), 40).lives == 14


def test_nobody_is_asked_to_grow_beyond_what_was_declared():
    """The last sequence of a life had to reach `longest` whatever its limit: the example's arena, right, failed."""
    path = Path(__file__).parents[2] / "examples/arena/src/arena/strategy.py"
    spec = importlib.util.spec_from_file_location("arena_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert lives(lambda s: module.Arena(s.memory), range(14), 40).lives == 14
