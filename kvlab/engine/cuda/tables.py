"""A strategy's block tables on the device: each launch brings over what it reads and the device does not have.

Appended entries are found by counting; what else changes, the host's tables note. R rows, P entries, B sequences.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from kvlab.engine.cuda.platform import Platform
from kvlab.engine.launch import packed
from kvlab.tables import Tables


class DeviceTables:
    """A copy of `tables`, which note from now on what is overwritten. There is one copy of a table at most."""

    def __init__(self, tables: Tables, platform: Platform) -> None:
        assert tables.changed is None, "these tables are on a device already"
        tables.changed = {}
        self.host, self.platform = tables, platform
        self.table_RP = torch.zeros(tables.data.shape, dtype=torch.int32, device=platform.device)
        self.there_R = np.zeros(len(tables.data), np.int64)  # leading entries of each row that the device has
        self.sent = 0  # entries so far

    def update(self, row_B: NDArray[np.int64], entries_B: NDArray[np.int64]) -> None:
        """Bring over what is missing of the first entries of these rows."""
        changed, there_R = self.host.changed, self.there_R
        assert changed is not None
        for row, index in changed.items():
            there_R[row] = min(int(there_R[row]), index)
        changed.clear()
        lacks_B = there_R[row_B] < entries_B
        if not lacks_B.any():
            return
        row_C, stop_C = row_B[lacks_B], entries_B[lacks_B]
        row_N, index_N = packed(row_C, there_R[row_C], stop_C)
        value_N = self.host.data[row_N, index_N]
        place_2N = np.stack([row_N * self.host.data.shape[1] + index_N, value_N])
        there_2N = self.platform.send(place_2N)
        self.table_RP.view(-1).index_put_((there_2N[0],), there_2N[1].int())
        there_R[row_C] = stop_C
        self.sent += len(row_N)
