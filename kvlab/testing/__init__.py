"""The contract that every strategy must pass: random lives against a memory that remembers.

In a plugin's test file:

    from kvlab.testing import StrategyContract

    class TestMine(StrategyContract):
        make = Mine
"""

from kvlab.testing.contract import LifeError, StrategyContract, lives
from kvlab.testing.gather import gather
from kvlab.testing.rule import RuleError

__all__ = ["LifeError", "RuleError", "StrategyContract", "gather", "lives"]
