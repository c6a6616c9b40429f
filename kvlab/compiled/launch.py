"""Makes the launch that a variant stands for, through the same function that the engine calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kvlab.compiled.variants import Variant
from kvlab.errors import UsageError
from kvlab.kernels.gpu.append import append
from kvlab.kernels.gpu.copy import copy
from kvlab.kernels.gpu.decode import decode
from kvlab.kernels.gpu.prefill import prefill
from kvlab.kernels.gpu.sample import Sample, sample

# None of them divisible by 16 nor 1: numbers for which a launch could be compiled in a special way.
SEQUENCES, LENGTH, NEW, SPLITS = 3, 1002, 202, 7
SCALE = 0.1


def launch(variant: Variant) -> None:
    """On the active device. UsageError: there is no such kernel."""
    if variant.kernel not in KERNELS:
        raise UsageError(f"no kernel {variant.kernel!r}; allowed is {', '.join(KERNELS)}")
    KERNELS[variant.kernel](variant)


def _decode(variant: Variant, splits: int) -> None:
    made = _sample(variant, 1)
    decode(*made[:4], made.part.sequences, LENGTH, SCALE, splits=splits)


def _prefill(variant: Variant) -> None:
    made = _sample(variant, NEW)
    prefill(*made[:4], made.part.sequences, NEW, LENGTH, SCALE)


def _append(variant: Variant) -> None:
    made = _sample(variant, NEW)
    k_THD, v_THD = (torch.zeros(len(made.q_TQD), *made.k_SHD.shape[1:], dtype=made.k_SHD.dtype) for _ in "kv")
    append(made.k_SHD, made.v_SHD, made.view.slot_T, k_THD, v_THD)


def _copy(variant: Variant) -> None:
    made = _sample(variant, 1)
    source_N, target_N = np.array([0, 100]), np.array([50, 200])
    copy(made.k_SHD, made.v_SHD, source_N, target_N, np.array([16, 16]))


def _sample(variant: Variant, new: int) -> Sample:
    dtype = getattr(torch, variant.dtype)
    return sample(dtype, variant.head_dim, variant.block_size, variant.groups, "cpu", SEQUENCES, LENGTH, new)


KERNELS: dict[str, Callable[[Variant], None]] = {
    "decode": lambda variant: _decode(variant, 1),
    "split decode": lambda variant: _decode(variant, SPLITS),
    "prefill": _prefill,
    "append": _append,
    "copy": _copy,
}
