"""The host's slots, where swapped sequences lie: as many in each layer, allocated once.

Under a device they are pinned, so that a copy is a place in the stream and its order there is the moves' order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.kernels import copy
from kvlab.kernels.pool import heads_of
from kvlab.memory.host_vmm import VmmError
from kvlab.moves import SwapIn, SwapOut


class HostMemory:
    """[2, L, S, H, D] beside a store's layers. VmmError: there is too little memory."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]], slots: int) -> None:
        keys = layers[0][0]
        shape = (2, len(layers), slots, heads_of(keys), keys.shape[-1])
        try:
            kv_2LSHD = torch.empty(shape, dtype=keys.dtype, pin_memory=keys.is_cuda)
        except RuntimeError as error:
            raise VmmError("torch.empty", str(error).splitlines()[0]) from error
        self.nbytes = kv_2LSHD.nbytes
        self._slots = slots
        self._pairs = list(zip(layers, zip(*kv_2LSHD, strict=True), strict=True))  # of the device and of the host

    def apply(self, move: SwapOut | SwapIn) -> None:
        """Carry it out, or put it into the device's stream. VmmError: what it was to copy is where it was."""
        first, tokens = move.host, move.tokens
        assert 0 <= first <= first + tokens <= self._slots, f"{move}: the host has {self._slots} slots"
        for device, host in self._pairs:
            for pool, host_SHD in zip(device, host, strict=True):
                if isinstance(move, SwapOut):
                    transfer(pool, move.source, host_SHD, first, tokens)
                else:
                    transfer(host_SHD, first, pool, move.target, tokens)


def transfer(source_pool: Tensor, source: int, target_pool: Tensor, target: int, tokens: int) -> None:
    """Slots of one tensor to slots of the other. The host does not wait for a device."""
    copy.transfer([source_pool], [target_pool], copy.stretch(source, target, tokens))
