"""Writing new tokens and copying runs of slots, as a device does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Layers = Sequence[tuple[Tensor, Tensor]]  # k_SHD, v_SHD of each
Copy = Callable[[NDArray[np.int64], NDArray[np.int64], int], object]  # first slots of runs: from, to; tokens of each


class Moves(NamedTuple):
    append: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], object]  # k_SHD, v_SHD, slot_T, k_THD, v_THD
    copy_in: Callable[[Layers], Copy]  # a copy in all of these layers


def moves_on(device: str) -> Moves:
    """What the engine uses there."""
    if device == "cpu":
        from kvlab.kernels.write import write

        return Moves(write, _on_the_host)
    from kvlab.kernels.gpu.append import append

    return Moves(append, _all_at_once)


def _on_the_host(layers: Layers) -> Copy:
    from kvlab.kernels.copy import Stretches, transfer

    pools = [pool for layer in layers for pool in layer]
    return lambda source_N, target_N, tokens: transfer(
        pools, pools, Stretches(source_N, target_N, np.full_like(source_N, tokens))
    )


def _all_at_once(layers: Layers) -> Copy:
    from kvlab.kernels.gpu.copy import copy_layers, layers_of

    together = layers_of(layers)
    return lambda source_N, target_N, tokens: copy_layers(together, source_N, target_N, np.full_like(source_N, tokens))
