"""What the GPU's kernels read: where the tokens of each sequence of one launch lie, on the device.

A launch has at most two parts: sequences with one new token, which decode, and those with more, which prefill.
B sequences, T packed new tokens, P table entries, R rows of a table. Grids are made of host numbers only and
lengths are read on the device, so that a decode launch fits into a CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.memory.host_vmm import round_up
from kvlab.memory.view import new_slots

ALIGNED = 16  # bytes: kernels are compiled for pointers that allow their widest loads


class Rows(NamedTuple):
    """Contiguous geometry: each sequence is a row of slots."""

    start_B: Tensor  # int64: first slot of each sequence's row
    length_B: Tensor  # int32: tokens readable at the end of the launch; 0: the sequence is padding
    query_B: Tensor  # int32: the first of its packed new tokens
    new_B: Tensor  # int32: how many they are, the last of its length


class Blocks(NamedTuple):
    """Paged geometry: a row of a table for each sequence. Entries beyond the last in use may be anything."""

    table_RP: Tensor  # int32, any row stride
    row_B: Tensor  # int32: the sequence's row of the table
    length_B: Tensor  # int32, as for Rows
    query_B: Tensor  # int32
    new_B: Tensor  # int32
    block_size: int


class Part(NamedTuple):
    """The sequences of a launch that go through one kernel, and what its grid depends on."""

    sequences: Rows | Blocks
    longest: int  # tokens of the longest sequence, or more
    most: int  # new tokens of the sequence with the most, or more


class View(NamedTuple):
    """One launch, for every layer that shares the table."""

    decode: Part | None
    prefill: Part | None
    slot_T: Tensor  # int64: slot that each packed new token is written to


def make_view(
    table_BP: NDArray[np.int32],
    start_B: NDArray[np.int64],
    stop_B: NDArray[np.int64],
    block_size: int | None,
    device: torch.device | str,
) -> View:
    """The launch that computes the tokens [start, stop) of each sequence, with table row b for sequence b.

    block_size None: entry 0 is the row's first slot. Of blocks, the used width of the table is uploaded.
    """
    if block_size is None:
        return _make(table_BP, start_B, stop_B, None, None, table_BP[:, 0].astype(np.int64), device)
    width = -(-int(stop_B.max(initial=0)) // block_size)
    (table,) = _upload([np.ascontiguousarray(table_BP[:, :width], np.int32)], device)
    return over_table(table, np.arange(len(table_BP)), table_BP, start_B, stop_B, block_size)


def over_table(
    table_RP: Tensor,
    row_B: NDArray[np.integer],
    table_BP: NDArray[np.int32],
    start_B: NDArray[np.int64],
    stop_B: NDArray[np.int64],
    block_size: int,
) -> View:
    """The same over a table that is on the device already: sequence b is its row row_B[b], on the host table_BP[b]."""
    return _make(table_BP, start_B, stop_B, block_size, table_RP, row_B.astype(np.int32), table_RP.device)


def _make(
    table_BP: NDArray[np.int32],
    start_B: NDArray[np.int64],
    stop_B: NDArray[np.int64],
    block_size: int | None,
    table_RP: Tensor | None,
    place_B: NDArray[np.integer],
    device: torch.device | str,
) -> View:
    """place_B: the first slot, or the row of the table."""
    new_B = stop_B - start_B
    query_B = np.cumsum(new_B) - new_B
    arrays: list[NDArray[np.generic]] = [new_slots(table_BP, start_B, stop_B, block_size)]
    chosen = [np.flatnonzero(new_B == 1), np.flatnonzero(new_B > 1)]
    for index_N in chosen:
        arrays += [place_B[index_N], *(x_B[index_N].astype(np.int32) for x_B in (stop_B, query_B, new_B))]
    slot, *rest = _upload(arrays, device)

    def part(index_N: NDArray[np.intp], place: Tensor, length: Tensor, query: Tensor, new: Tensor) -> Part | None:
        if not len(index_N):
            return None
        sequences: Rows | Blocks = Rows(place, length, query, new)
        if table_RP is not None and block_size is not None:
            sequences = Blocks(table_RP, place, length, query, new, block_size)
        return Part(sequences, int(stop_B[index_N].max()), int(new_B[index_N].max()))

    return View(part(chosen[0], *rest[:4]), part(chosen[1], *rest[4:]), slot)


def _upload(arrays: list[NDArray[np.generic]], device: torch.device | str) -> list[Tensor]:
    """All of them in one copy to the device, aligned."""
    device = torch.device(device)
    stops = np.cumsum([0, *(round_up(array.nbytes, ALIGNED) for array in arrays)]).tolist()
    here = torch.empty(stops[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    for first, array in zip(stops, arrays, strict=False):
        here.numpy()[first : first + array.nbytes] = array.reshape(-1).view(np.uint8)
    there = here.to(device, non_blocking=True)
    dtypes = [torch.from_numpy(np.empty(0, array.dtype)).dtype for array in arrays]
    return [
        there[first : first + array.nbytes].view(dtype).view(array.shape)
        for first, array, dtype in zip(stops, arrays, dtypes, strict=False)
    ]
