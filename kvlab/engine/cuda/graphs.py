"""Decode steps as recorded graphs: the host asks for one launch where a model has hundreds.

A graph is for a bucket of so many sequences, and for a number of pieces that attention cuts each of them into, which
depends on the longest. Smaller launches are padded up to the bucket.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.cuda.inputs import Inputs
from kvlab.engine.cuda.platform import Graph, Platform

LARGEST = 512  # sequences; in larger launches asking takes less than computing
SHORTEST = 256  # tokens: graphs are told apart by the longest sequence from here on, in powers of two

Compute = Callable[[int, int], Tensor]  # bucket, longest -> answer_2M of the inputs
Splits = Callable[[int, int], int]  # bucket, longest -> pieces of a sequence


def buckets(most: int) -> list[int]:
    """1, 2, 4, 8, 16, 24 and so on, up to `most` or LARGEST, which is the last one."""
    most = min(most, LARGEST)
    steps = [1, 2, 4, 8, *range(16, 257, 8), *range(272, LARGEST + 1, 16)]
    return [*(size for size in steps if size < most), most]


def rounded(longest: int) -> int:
    """The next power of two from SHORTEST on."""
    return max(SHORTEST, 1 << (longest - 1).bit_length())


class DecodeGraphs:
    """Of one model over one store's tensors."""

    def __init__(self, platform: Platform, inputs: Inputs, most: int, compute: Compute, splits: Splits) -> None:
        self.platform, self.inputs, self.compute, self.splits = platform, inputs, compute, splits
        self.buckets, self.memory = buckets(most), platform.graph_memory()
        self.graphs: dict[tuple[int, int], Graph] = {}  # bucket, pieces
        self.nbytes = 0  # memory that they took
        self.replays = 0

    def take(self, launch_B: int) -> bool:
        """Whether launches of so many sequences have a bucket."""
        return 0 < launch_B <= self.buckets[-1]

    def capture_all(self, max_len: int) -> None:
        """Everything that launches of at most max_len tokens a sequence may need, largest first."""
        before, nothing = self.platform.used_bytes(), np.empty(0, np.int64)
        for bucket in reversed(self.buckets):
            self.inputs.fill(bucket, nothing, nothing, nothing, nothing)
            longest = SHORTEST
            while longest <= rounded(max_len):
                self._of(bucket, longest)
                longest *= 2
        self.nbytes += self.platform.used_bytes() - before

    def replay(
        self,
        ids_B: NDArray[np.integer],
        position_B: NDArray[np.int64],
        slot_B: NDArray[np.int64],
        place_B: NDArray[np.int64],
    ) -> Tensor:
        """answer_2B of sequences that compute one token each."""
        count = len(ids_B)
        bucket = next(size for size in self.buckets if size >= count)
        self.inputs.fill(bucket, ids_B, position_B, slot_B, place_B)
        graph = self._of(bucket, rounded(int(position_B.max()) + 1))
        graph.replay()
        self.replays += 1
        return graph.result[:, :count]

    def _of(self, bucket: int, longest: int) -> Graph:
        key = bucket, self.splits(bucket, longest)
        if key not in self.graphs:
            self.graphs[key] = self.platform.capture(lambda: self.compute(bucket, longest), self.memory)
        return self.graphs[key]
