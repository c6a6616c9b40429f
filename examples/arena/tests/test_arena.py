"""The contract that every strategy must pass."""

from arena.strategy import Arena

from kvlab.testing import StrategyContract


class TestArena(StrategyContract):
    make = Arena
