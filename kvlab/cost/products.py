"""Seconds that a model's matrices take, by rows: a roofline, or what was measured on a real machine."""

from __future__ import annotations

from bisect import bisect_right

from kvlab.cost.nodes import Node
from kvlab.errors import UsageError


class Roofline:
    """max(bytes / bandwidth, operations / peak); weights are read once."""

    def __init__(self, bytes_per_s: float, operations_per_s: float, value_bytes: int) -> None:
        self.second_per_value = value_bytes / bytes_per_s
        self.operations_per_s = operations_per_s

    def seconds(self, rows: int, weights: int, activations: int) -> float:
        """`activations`: numbers that one row reads and writes."""
        read = (weights + rows * activations) * self.second_per_value
        return max(read, 2.0 * weights * rows / self.operations_per_s)


class Measured:
    """Between the rows that were measured along a line, beyond them at the last one's rate."""

    def __init__(self, rows: list[float], seconds_per_weight: list[float]) -> None:
        self.rows, self.costs = rows, seconds_per_weight

    def seconds(self, rows: int, weights: int, activations: int) -> float:
        del activations  # part of what was measured
        return weights * self._per_weight(rows)

    def _per_weight(self, rows: int) -> float:
        if rows <= self.rows[0]:
            return self.costs[0]
        if rows >= self.rows[-1]:
            return self.costs[-1] * rows / self.rows[-1]
        right = bisect_right(self.rows, rows)
        share = (rows - self.rows[right - 1]) / (self.rows[right] - self.rows[right - 1])
        return self.costs[right - 1] + share * (self.costs[right] - self.costs[right - 1])


Products = Roofline | Measured


def measured(gpu: Node, part: str, dtype: str) -> Measured | None:
    """The table of gpu.products, `part` of it; None where there is none. UsageError: it is of another dtype."""
    node = gpu.optional("products")
    if node is None:
        return None
    found = node.values.get("dtype")
    if found != dtype:
        raise UsageError(f"dtype={dtype}: gpu={gpu.values.get('name')} was measured with {found}; allowed is {found}")
    rows = node.rising("rows")
    return Measured(rows, [value * 1e-12 for value in node.beside(part, rows, "rows")])
