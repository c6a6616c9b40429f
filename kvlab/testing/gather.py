"""The oracle that reads every view: from tables to slots, without the arithmetic of kernels and strategies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlab.strategy import Tables


def gather(
    table_BP: NDArray[np.int32], start_B: NDArray[np.int64], stop_B: NDArray[np.int64], block_size: int | None
) -> NDArray[np.int64]:
    """slot_T of the tokens [start, stop) of each sequence, packed; table row b is that of sequence b.

    Spreads every table out into all the slots that it names, then picks: no division, no remainder.
    """
    if block_size is None:
        position_S = np.arange(int(stop_B.max(initial=0)))
        slot_BS = table_BP[:, :1].astype(np.int64) + position_S
    else:
        slot_BPS = np.multiply(table_BP[:, :, None], block_size, dtype=np.int64) + np.arange(block_size)
        slot_BS = slot_BPS.reshape(len(table_BP), table_BP.shape[1] * block_size)
        position_S = np.arange(slot_BS.shape[1])
    picked_BS = (position_S >= start_B[:, None]) & (position_S < stop_B[:, None])
    return slot_BS[picked_BS]


def gather_from(
    tables: Tables, seqs: list[int], starts: list[int], stops: list[int], block_size: int | None
) -> NDArray[np.int64]:
    """The same for sequences that are open in a strategy's tables."""
    table_BP = tables.data[list(map(tables.row.__getitem__, seqs))]
    return gather(table_BP, np.array(starts, np.int64), np.array(stops, np.int64), block_size)
