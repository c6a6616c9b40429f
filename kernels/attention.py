"""Attention of a launch on the CPU, over either geometry: each sequence by itself, whoever shares the launch.

Pieces of a few tokens go through one C kernel, longer ones through another, all of each in one call. Without a C
compiler everything goes through torch, a sequence at a time, and `kernel_name` says so.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvlab.kernels.decode import Decoding, kernel, queries_of
from kvlab.kernels.prefill import kernel as prefill_kernel
from kvlab.kernels.prefill import prefill, prefill_all
from kvlab.memory.view import View

# New tokens of a piece that go through the kernel for single queries: it computes the same for a token alone or in a
# piece. The other one computes the same however a prompt is cut into longer pieces, but sums in another order. In
# float64 speed does not count, and everything goes through the first.
SHORT = 8
SHORT_FLOAT64 = 1 << 30


class Attention:
    """The attention of one launch, in every layer; what layers have in common is put together once."""

    def __init__(self, q_TQD: Tensor, k_SHD: Tensor, view: View, scale: float, compiled: bool = True) -> None:
        """q_TQD and k_SHD: any layer's. compiled=False leaves the C kernels out."""
        dtype, head_dim, groups = q_TQD.dtype, q_TQD.shape[2], q_TQD.shape[1] // k_SHD.shape[1]
        assert k_SHD.dtype == dtype, "queries have the pool's type"
        self.view, self.scale, self._alike = view, scale, _alike(q_TQD, k_SHD)
        self._decoding: Decoding | None = None
        self._shortest = 1  # new tokens of a piece that does not go through the kernel for single queries
        function = kernel(dtype, head_dim, groups)[0] if compiled else None
        if function is not None:
            short = SHORT_FLOAT64 if dtype == torch.float64 else SHORT
            self._decoding = Decoding(function, k_SHD, view, queries_of(view, short), scale)
            self._shortest = short + 1
        self._long = bool(view.new_B.numpy().max(initial=0) >= self._shortest)
        self._prefill = prefill_kernel(dtype, head_dim, groups) if compiled and self._long else None

    def serves(self, q_TQD: Tensor, k_SHD: Tensor, view: View, scale: float) -> bool:
        """Whether these are of that very launch, and laid out as the layer that it was made for."""
        return view is self.view and scale == self.scale and _alike(q_TQD, k_SHD) == self._alike

    def __call__(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor) -> Tensor:
        """o_TQD of a layer."""
        q_TQD = q_TQD.contiguous()
        o_TQD = torch.empty_like(q_TQD)
        if self._decoding is not None:
            self._decoding(q_TQD, k_SHD, v_SHD, o_TQD)
        if self._prefill is not None:
            prefill_all(self._prefill, q_TQD, k_SHD, v_SHD, o_TQD, self.view, self._shortest, self.scale)
        elif self._long:
            self._in_torch(q_TQD, k_SHD, v_SHD, o_TQD)
        return o_TQD

    def _in_torch(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, o_TQD: Tensor) -> None:
        new_B = self.view.new_B.numpy()
        stop_B = np.cumsum(new_B, dtype=np.int64)
        for index in np.flatnonzero(new_B >= self._shortest).tolist():
            tokens = slice(stop_B[index] - new_B[index], stop_B[index])
            o_TQD[tokens] = prefill(q_TQD[tokens], k_SHD, v_SHD, self.view, index, self.scale)


def _alike(q_TQD: Tensor, k_SHD: Tensor) -> tuple[object, ...]:
    return q_TQD.shape, q_TQD.dtype, k_SHD.dtype, k_SHD.shape, k_SHD.stride(), torch.get_num_threads()


def attend(q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: View, scale: float, compiled: bool = True) -> Tensor:
    """o_TQD: packed query t sees the tokens of its sequence up to its own position.

    Never reads a slot outside [0, length) of a sequence, nor a table entry beyond its last. compiled=False
    leaves the C kernels out.
    """
    return Attention(q_TQD, k_SHD, view, scale, compiled)(q_TQD, k_SHD, v_SHD)


def kernel_name(dtype: torch.dtype = torch.float32, head_dim: int = 64, groups: int = 3) -> str:
    """What decode runs through for that shape: "c, " and its instruction set, or "torch: " and why."""
    return kernel(dtype, head_dim, groups)[1]
