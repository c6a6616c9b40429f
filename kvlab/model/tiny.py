"""`model=tiny`: random weights from a seed, for tests and demonstrations that must be quick and exact.

Scaled so that attention is sharp and far-reaching: greedy output varies and depends on the whole context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlab.errors import UsageError
from kvlab.model.shape import Shape
from kvlab.model.weights import Weights, fuse, parts

MOST_WEIGHTS = 2**28  # 2 GiB of random numbers
SIZES = tuple(field.name for field in fields(Shape) if field.name != "rope_scaling")


class Tiny:
    """A source of weights: sizes and seed from the configuration."""

    dtypes = ("float32", "bfloat16", "float64")
    tokenizer = None

    def __init__(self, config: Mapping[str, Any]) -> None:
        """UsageError: a size or the seed is missing or wrong."""
        missing = [name for name in (*SIZES, "seed") if config.get(name) is None]
        if missing:
            raise UsageError(f"model=tiny: missing {', '.join(missing)}")
        unknown = [name for name in config if name not in (*SIZES, "seed", "name", "path")]
        if unknown:
            raise UsageError(f"model.{unknown[0]}: model=tiny has no such size; it has {', '.join(SIZES)}, seed")
        self.name = "tiny"
        self.seed = config["seed"]
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise UsageError(f"model.seed={self.seed}: allowed is a whole number, 0 or more")
        self.shape = Shape(**{name: config[name] for name in SIZES})
        weights = sum(math.prod(size) for size in parts(self.shape).values())
        if weights > MOST_WEIGHTS:
            raise UsageError(f"model=tiny: {weights:,} weights by its sizes; allowed are at most {MOST_WEIGHTS:,}")

    def begin(self) -> None:
        """There is nothing to do before `weights`."""

    def weights(self, dtype: str) -> Weights:
        """The same values for every dtype, rounded to it."""
        import torch

        random = np.random.default_rng(self.seed)
        values = {name: _draw(random, name, size) for name, size in parts(self.shape).items()}
        return fuse(self.shape, lambda name: torch.from_numpy(values[name]), dtype)


def _draw(random: np.random.Generator, name: str, size: tuple[int, ...]) -> NDArray[np.float64]:
    kind = name.rpartition(".")[2]
    values: NDArray[np.float64] = random.standard_normal(size)
    if kind.endswith("norm"):
        return 1 + 0.1 * values
    if kind == "embed":
        return values
    return values * (2.0 if kind in ("q", "k") else 1.0) / math.sqrt(size[-1])
