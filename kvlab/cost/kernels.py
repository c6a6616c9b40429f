"""How much longer attention takes over blocks than over rows, by what published or measured kernels say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlab.cost.nodes import Node
from kvlab.errors import UsageError


class Factors:
    """Factors on the seconds of attention; all 1 over rows."""

    def __init__(self, cost: Node, attention: str, block_size: int | None) -> None:
        """`attention`: the kernel's name where cost.kernel does not say another. UsageError: no such kernel."""
        self.contexts, self.prefills, self.decode = np.ones(1), np.ones(1), 1.0
        if block_size is None:
            return
        if cost.values.get("paged_factor") is not None:
            self.decode = cost.positive("paged_factor")
            self.prefills = np.full(1, self.decode)
            return
        node = _kernel(cost, str(cost.values.get("kernel") or attention))
        contexts = node.rising("prefill_context")
        self.contexts = np.log2(contexts)
        self.prefills = np.asarray(node.beside("prefill_factor", contexts, "prefill_context"))
        sizes = node.rising("decode_block_size")
        factors = node.beside("decode_factor", sizes, "decode_block_size")
        self.decode = float(np.interp(math.log2(block_size), np.log2(sizes), factors))

    def prefill(self, stop_B: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of each sequence, by how many tokens it has; at the ends that of the nearest one known."""
        return np.interp(np.log2(stop_B), self.contexts, self.prefills)


def _kernel(cost: Node, name: str) -> Node:
    known: dict[str, Any] = dict(cost.part("kernels").values)
    if name not in known:
        raise UsageError(f"cost.kernel={name}: allowed is {', '.join(known)}")
    return cost.part("kernels").part(name)
