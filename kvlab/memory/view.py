"""What an attention kernel reads: where the tokens of each sequence of one launch lie, in two geometries.

B sequences, T new tokens, P table entries. Tables come from a strategy in numpy; a view is the same for
every layer that shares the table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Rows(NamedTuple):
    """Contiguous geometry: each sequence is a row of slots."""

    start_B: Tensor  # int64: first slot of each sequence's row
    length_B: Tensor  # int32: tokens readable at the end of the launch
    new_B: Tensor  # int32: of them written and queried in this launch, the last ones; packed in slot_T
    slot_T: Tensor  # int64: slot that each packed new token is written to


class Blocks(NamedTuple):
    """Paged geometry: a table of blocks for each sequence. Entries beyond its length may be anything."""

    table_BP: Tensor  # int32
    length_B: Tensor  # int32, as for Rows
    new_B: Tensor  # int32
    slot_T: Tensor  # int64
    block_size: int


View = Rows | Blocks


def make_view(
    table_BP: NDArray[np.int32], start_B: NDArray[np.int64], stop_B: NDArray[np.int64], block_size: int | None
) -> View:
    """The launch that computes the tokens [start, stop) of each sequence, with table row b for sequence b.

    block_size None: entry 0 is the row's first slot. Reads no entry beyond the last one in use.
    """
    new_B = stop_B - start_B
    length, new = torch.from_numpy(stop_B.astype(np.int32)), torch.from_numpy(new_B.astype(np.int32))
    slot = torch.from_numpy(new_slots(table_BP, start_B, stop_B, block_size))
    if block_size is None:
        return Rows(torch.from_numpy(table_BP[:, 0].astype(np.int64)), length, new, slot)
    width = -(-int(stop_B.max(initial=0)) // block_size)
    table = np.ascontiguousarray(table_BP[:, :width], np.int32)
    return Blocks(torch.from_numpy(table), length, new, slot, block_size)


def new_slots(
    table_BP: NDArray[np.int32], start_B: NDArray[np.int64], stop_B: NDArray[np.int64], block_size: int | None
) -> NDArray[np.int64]:
    """slot_T, int64: where the packed tokens [start, stop) of each sequence lie. Arguments as for make_view."""
    sequence_T, position_T = _packed(start_B, stop_B - start_B)
    if block_size is None:
        return table_BP[:, 0].astype(np.int64)[sequence_T] + position_T
    slot_T = table_BP[sequence_T, position_T // block_size].astype(np.int64)
    slot_T *= block_size
    slot_T += position_T % block_size
    return slot_T


def slots_of(view: View, index: int) -> Tensor:
    """slot_N, int64: the slots of all tokens of the sequence that is `index`-th in the view, in order."""
    length = int(view.length_B[index])
    position_N = torch.arange(length)
    if isinstance(view, Rows):
        return view.start_B[index] + position_N
    table_P = view.table_BP[index, : -(-length // view.block_size)].long()
    return table_P[position_N // view.block_size] * view.block_size + position_N % view.block_size


def _packed(start_B: NDArray[np.int64], new_B: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """sequence_T, position_T of the packed new tokens."""
    sequence_B = np.arange(len(new_B))
    if (new_B == 1).all():  # every step that only decodes
        return sequence_B, start_B
    sequence_T = np.repeat(sequence_B, new_B)
    first_B = np.cumsum(new_B) - new_B  # packed tokens before each sequence
    return sequence_T, np.arange(len(sequence_T)) + (start_B - first_B)[sequence_T]
