"""A launch of some shape with nothing in it: what compile checks, tuning and benchmarks hand to the kernels.

B sequences, T packed new tokens, S slots, Q query heads, H key/value heads, D head size, L layers side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kvlab.kernels.gpu.geometry import Part, View, make_view


class Sample(NamedTuple):
    """Queries and stores of one layer of several that lie side by side, and where the tokens lie."""

    q_TQD: Tensor
    k_SHD: Tensor
    v_SHD: Tensor
    o_TQD: Tensor
    view: View

    @property
    def part(self) -> Part:
        """The only one: all sequences are alike."""
        part = self.view.decode or self.view.prefill
        assert part is not None
        return part


def sample(
    dtype: torch.dtype,
    head_dim: int,
    block_size: int | None,
    groups: int,
    device: torch.device | str,
    sequences: int,
    length: int,
    new: int = 1,
    kv_heads: int = 8,
    layers: int = 2,
) -> Sample:
    """`sequences` of `length` tokens, the last `new` of them written and queried; blocks are shuffled."""
    width = -(-length // (block_size or length))
    size = block_size or length  # slots that one entry of the table stands for
    order = np.random.default_rng(0).permutation(sequences * width).astype(np.int32)
    table_BP = order.reshape(sequences, width) * (1 if block_size else length)
    stop_B = np.full(sequences, length)
    view = make_view(table_BP, stop_B - new, stop_B, block_size, device)
    shape = (sequences * width * size, layers, kv_heads, head_dim)
    k_SHD, v_SHD = (torch.zeros(shape, dtype=dtype, device=device)[:, -1] for _ in "kv")
    q_TQD = torch.randn(sequences * new, kv_heads * groups, head_dim, device=device).to(dtype)
    return Sample(q_TQD, k_SHD, v_SHD, torch.empty_like(q_TQD), view)
