"""Tries shapes of the attention kernels' programs on this GPU, for the launches that are named, and notes the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from kvlab.errors import UsageError
from kvlab.kernels.gpu.config import Config
from kvlab.kernels.gpu.decode import decode
from kvlab.kernels.gpu.prefill import prefill
from kvlab.kernels.gpu.sample import sample
from kvlab.kernels.gpu.tuning import KINDS, Key, Tuned, tune

CHUNK = 512  # new tokens of a sequence that is prefilled, behind a prefix


class Shape(NamedTuple):
    """What the choice does not depend on, though the times do."""

    batch: int
    length: int
    kv_heads: int
    device: str = "cuda"


def keys_of(dtypes: list[str], head_dim: int, block_sizes: list[int], groups: int) -> list[Key]:
    """Both kernels, over rows and over blocks of each size."""
    return [
        Key(kind, getattr(torch, dtype), head_dim, block_size, groups)
        for kind in KINDS
        for dtype in dtypes
        for block_size in (None, *block_sizes)
    ]


def tune_all(keys: list[Key], shape: Shape, path: Path | None = None) -> Iterator[tuple[Key, Tuned]]:
    """One after another. path: another file than the user's cache. UsageError: there is no such GPU."""
    if shape.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device=cuda: torch finds no CUDA device here; kernels are tuned where they run")
    for key in keys:
        yield key, tune(key, launch_of(key, shape), path=path)


def launch_of(key: Key, shape: Shape) -> Callable[[Config], None]:
    """Runs the key's kernel once, on tensors that are made now."""
    new = 1 if key.kind == "decode" else min(CHUNK, shape.length)
    batch, length, kv_heads, device = shape
    made = sample(*key[1:], device, batch, length, new, kv_heads)
    scale, sequences = key.head_dim**-0.5, made.part.sequences
    if key.kind == "decode":
        return lambda config: decode(*made[:4], sequences, length, scale, config=config)
    return lambda config: prefill(*made[:4], sequences, new, length, scale, config=config)
