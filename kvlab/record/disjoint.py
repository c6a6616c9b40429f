"""Whether what a strategy says it holds is what its tables give away: bytes alone do not show that two rows overlap.

Looking into the tables costs as much as they are long, so it is done when somebody was admitted, and now and then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlab.record.accounting import AccountingError
from kvlab.record.seen import Places
from kvlab.strategy import Strategy, Usage

EVERY = 64  # steps between looks while nobody is admitted


class Disjoint:
    """Looks at the first layer group's table."""

    def __init__(self, strategy: Strategy, every_admission: bool = True) -> None:
        self.strategy, self.every_admission = strategy, every_admission
        self.admissions, self.steps = -1, EVERY

    def check(self, usage: Usage, lanes: Places, lane_B: NDArray[np.int64], admissions: int) -> None:
        """Raise AccountingError if sequences overlap, or distinct live blocks are not what is held."""
        self.steps += 1
        if self.steps < EVERY and not (self.every_admission and admissions != self.admissions):
            return
        self.admissions, self.steps = admissions, 0
        if self.strategy.block_size is None:
            self._rows(lanes, lane_B)
        else:
            self._blocks(usage, lanes.id[lane_B].tolist())

    def _rows(self, lanes: Places, lane_B: NDArray[np.int64]) -> None:
        start_B = self.strategy.table.data[lanes.row[lane_B], 0].astype(np.int64)
        order_B = np.argsort(start_B)
        start_B, stop_B = start_B[order_B], (start_B + lanes.room[lane_B])[order_B]
        if (stop_B[:-1] > start_B[1:]).any():
            first = int(np.flatnonzero(stop_B[:-1] > start_B[1:])[0])
            pair = lanes.id[lane_B][order_B][first : first + 2].tolist()
            raise AccountingError(f"sequences {pair[0]} and {pair[1]} share slots: their rows overlap")

    def _blocks(self, usage: Usage, seqs: list[int]) -> None:
        table, unit = self.strategy.table, (self.strategy.block_size or 1) * self.strategy.memory.token_bytes
        sorted_N = np.sort(table.live(seqs))
        distinct = len(sorted_N) and 1 + np.count_nonzero(sorted_N[1:] != sorted_N[:-1])
        if distinct * unit != usage.held - usage.rounded:
            raise AccountingError(f"{distinct:,} blocks of {unit:,} bytes are in the tables, held are {usage}")
