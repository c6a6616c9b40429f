"""The nodes of a configuration that hold a cost model's constants, read and checked one key at a time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from kvlab.errors import UsageError

LEAST, MOST = 1e-12, 1e12  # of a number above 0: sums of products of some stay finite, and exact enough


class Node:
    """One part of a configuration, `gpu` or `cost.efficiency`; every complaint names the key in full."""

    def __init__(self, name: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise UsageError(f"{name}={values}: executor=simulated needs it; allowed is one of the group's names")
        self.name, self.values = name, values

    def part(self, key: str) -> Node:
        return Node(f"{self.name}.{key}", self.values.get(key))

    def optional(self, key: str) -> Node | None:
        return None if self.values.get(key) is None else self.part(key)

    def number(self, key: str, low: float = 0.0, most: float = MOST) -> float:
        """A number from `low` to `most`."""
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= most:
            raise UsageError(f"{self.name}.{key}={value}: allowed is a number from {low:g} to {most:g}")
        return float(value)

    def positive(self, key: str) -> float:
        return self.number(key, LEAST)

    def share(self, key: str) -> float:
        """A number above 0, at most 1."""
        return self.number(key, LEAST, 1.0)

    def whole(self, key: str) -> int:
        """A whole number, 1 or more."""
        value = self.positive(key)
        if value < 1 or value != int(value):
            raise UsageError(f"{self.name}.{key}={value:g}: allowed is a whole number, 1 or more")
        return int(value)

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if not isinstance(value, bool):
            raise UsageError(f"{self.name}.{key}={value}: allowed is true or false")
        return value

    def numbers(self, key: str, low: float = 0.0) -> list[float]:
        """A list of numbers of at least `low`, one or more."""
        values = self.values.get(key)
        if not isinstance(values, list | tuple) or not values:
            raise UsageError(f"{self.name}.{key}={values}: allowed is a list of numbers")
        return [Node(self.name, {f"{key}[{n}]": value}).number(f"{key}[{n}]", low) for n, value in enumerate(values)]

    def rising(self, key: str) -> list[float]:
        """A list of numbers above 0, each above the one before it."""
        values = self.numbers(key)
        if values[0] <= 0 or any(b <= a for a, b in pairwise(values)):
            raise UsageError(f"{self.name}.{key}={values}: allowed are numbers above 0 that rise")
        return values

    def beside(self, key: str, other: list[float], other_key: str) -> list[float]:
        """A list of numbers, as many as `other`."""
        values = self.numbers(key)
        if len(values) != len(other):
            raise UsageError(f"{self.name}.{key}: allowed are {len(other)} numbers, one for each of {other_key}")
        return values
