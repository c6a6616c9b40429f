"""A launch cut into calls of other people's kernels, each over some of its sequences, on the device.

B sequences of a part, T packed new tokens, P table entries, Q query heads, D head size, C = B + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.memory.view import new_slots


class Part(NamedTuple):
    """The sequences of one call. What a package plans on the host is there in numpy too."""

    token_T: Tensor | None  # int64: their packed tokens; None: all tokens of the launch, in order
    table_BP: Tensor  # int32: blocks, up to the last in use of the longest; over rows one column, the first slot
    length_B: Tensor  # int32: tokens readable, the new ones included
    query_C: Tensor  # int32: new tokens of the part before each sequence, and all of them
    blocks_BP: NDArray[np.int32]  # table_BP
    tokens_B: NDArray[np.int32]  # length_B
    before_C: NDArray[np.int32]  # query_C

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.tokens_B.max())

    @property
    def most(self) -> int:
        """New tokens of the sequence with the most."""
        return int(np.diff(self.before_C).max())


class Launch(NamedTuple):
    """All parts of a launch, for every layer that shares the table."""

    parts: tuple[Part, ...]
    slot_T: Tensor  # int64: slot that each packed new token is written to
    block_size: int | None


Groups = Callable[[NDArray[np.int64]], Sequence[NDArray[np.intp]]]  # new_B -> the sequences of each part


def decode_and_prefill(new_B: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Sequences with one new token, and those with several."""
    return [np.flatnonzero(new_B == 1), np.flatnonzero(new_B > 1)]


def alike(new_B: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Sequences with equally many new tokens: one part is [B, most, Q, D]."""
    return [np.flatnonzero(new_B == new) for new in np.unique(new_B[new_B > 0])]


def make_launch(
    table_BP: NDArray[np.int32],
    start_B: NDArray[np.int64],
    stop_B: NDArray[np.int64],
    block_size: int | None,
    device: str,
    groups: Groups = decode_and_prefill,
) -> Launch:
    """As kvlab.memory.view.make_view, in parts; parts without a sequence are left out."""
    new_B = stop_B - start_B
    sequence_T = np.repeat(np.arange(len(new_B)), new_B)
    chosen = [index for index in groups(new_B) if len(index)]
    parts = []
    for index_N in chosen:
        token_T = None if len(chosen) == 1 else np.flatnonzero(np.isin(sequence_T, index_N))
        parts.append(_part(table_BP[index_N], stop_B[index_N], new_B[index_N], token_T, block_size, device))
    slot_T = torch.from_numpy(new_slots(table_BP, start_B, stop_B, block_size)).to(device)
    return Launch(tuple(parts), slot_T, block_size)


def attend_parts(q_TQD: Tensor, launch: Launch, compute: Callable[[int, Tensor], Tensor]) -> Tensor:
    """o_TQD, from what `compute` makes of each part, which it gets by number, and of its own queries in order."""
    if len(launch.parts) == 1:
        return compute(0, q_TQD)
    o_TQD = torch.empty_like(q_TQD)
    for index, part in enumerate(launch.parts):
        o_TQD[part.token_T] = compute(index, q_TQD[part.token_T])
    return o_TQD


def _part(
    table_BP: NDArray[np.int32],
    stop_B: NDArray[np.int64],
    new_B: NDArray[np.int64],
    token_T: NDArray[np.intp] | None,
    block_size: int | None,
    device: str,
) -> Part:
    width = 1 if block_size is None else -(-int(stop_B.max()) // block_size)
    table = np.ascontiguousarray(table_BP[:, :width], np.int32)
    length, query = stop_B.astype(np.int32), np.append(0, np.cumsum(new_B)).astype(np.int32)
    there = [torch.from_numpy(x).to(device) for x in (table, length, query)]
    token = None if token_T is None else torch.from_numpy(token_T).to(device)
    return Part(token, there[0], there[1], there[2], table, length, query)
