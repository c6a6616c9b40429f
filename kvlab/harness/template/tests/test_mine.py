"""The contract that every strategy must pass."""

from mine.strategy import Mine

from kvlab.testing import StrategyContract


class TestMine(StrategyContract):
    make = Mine
