"""The host's slots, where swapped sequences lie: as many in each layer, allocated once.

Under a device they are pinned, so that a copy is a place in the stream and its order there is the moves' order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.memory.host_vmm import VmmError
from kvlab.moves import SwapIn, SwapOut


class HostMemory:
    """[2, L, S, H, D] beside a store's layers. VmmError: there is too little memory."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]], slots: int) -> None:
        k_SHD = layers[0][0]
        shape = (2, len(layers), slots, *k_SHD.shape[1:])
        try:
            kv_2LSHD = torch.empty(shape, dtype=k_SHD.dtype, pin_memory=k_SHD.is_cuda)
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
            for kv_SHD, host_SHD in zip(device, host, strict=True):
                if isinstance(move, SwapOut):
                    transfer(kv_SHD, move.source, host_SHD, first, tokens)
                else:
                    transfer(host_SHD, first, kv_SHD, move.target, tokens)


def transfer(source_SHD: Tensor, source: int, target_SHD: Tensor, target: int, tokens: int) -> None:
    """Slots of one tensor to slots of the other. The host does not wait for a device."""
    target_SHD[target : target + tokens].copy_(source_SHD[source : source + tokens], non_blocking=True)
