"""What a captured decode launch reads: tensors that stay where they are, filled by one copy before each replay.

B sequences, M of a bucket: the last M - B are padding, which has length 0, writes nowhere and is answered for nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.cuda.platform import Platform
from kvlab.kernels.gpu.geometry import ALIGNED, Blocks, Part, Rows, View
from kvlab.memory.host_vmm import round_up

NOWHERE = -1  # the slot of a token that is not stored


class Inputs:
    """For at most `most` sequences. table_RP: the blocks' resident table; None: rows."""

    def __init__(self, platform: Platform, most: int, table_RP: Tensor | None, block_size: int | None) -> None:
        self.platform, self.table_RP, self.block_size = platform, table_RP, block_size
        place = np.int64 if table_RP is None else np.int32  # a first slot, or a row of the table
        fields = {"ids": np.int64, "position": np.int64, "slot": np.int64, "place": place, "length": np.int32}
        stops = np.cumsum([0, *(round_up(most * np.dtype(kind).itemsize, ALIGNED) for kind in fields.values())])
        self._here = platform.buffer(int(stops[-1]))
        self._there = torch.zeros(int(stops[-1]), dtype=torch.uint8, device=platform.device)
        self.host: dict[str, NDArray[np.integer]] = {}
        self.device: dict[str, Tensor] = {}
        for (name, kind), first in zip(fields.items(), stops.tolist(), strict=False):
            nbytes = slice(first, first + most * np.dtype(kind).itemsize)
            self.host[name] = self._here.numpy()[nbytes].view(kind)
            self.device[name] = self._there[nbytes].view(torch.from_numpy(np.empty(0, kind)).dtype)
        self.index_M = torch.arange(most, device=platform.device)
        self._query_M, self._new_M = self.index_M.int(), torch.ones(most, dtype=torch.int32, device=platform.device)

    def fill(
        self,
        bucket: int,
        ids_B: NDArray[np.integer],
        position_B: NDArray[np.int64],
        slot_B: NDArray[np.int64],
        place_B: NDArray[np.int64],
    ) -> None:
        """Sequences whose token at `position` is computed; the rest of the bucket is padding."""
        count = len(ids_B)
        given = {"ids": ids_B, "position": position_B, "slot": slot_B, "place": place_B, "length": position_B + 1}
        for name, value_B in given.items():
            self.host[name][:count] = value_B
            self.host[name][count:bucket] = NOWHERE if name == "slot" else 0
        self.platform.send_into(self._there, self._here)

    def view(self, bucket: int, longest: int) -> View:
        place, length = self.device["place"][:bucket], self.device["length"][:bucket]
        query, new = self._query_M[:bucket], self._new_M[:bucket]
        sequences: Rows | Blocks = Rows(place, length, query, new)
        if self.table_RP is not None and self.block_size is not None:
            sequences = Blocks(self.table_RP, place, length, query, new, self.block_size)
        return View(Part(sequences, longest, 1), None, self.device["slot"][:bucket])
