"""`attention=kvlab` on a CUDA device: our Triton kernels."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from kvlab.kernels.gpu import attention
from kvlab.kernels.gpu.geometry import View, make_view


class KvlabGpu:
    """Rows and blocks."""

    def __init__(self, device: str) -> None:
        self.device = device

    def make_view(
        self, table_BP: NDArray[np.int32], start_B: NDArray[np.int64], stop_B: NDArray[np.int64], block_size: int | None
    ) -> View:
        return make_view(table_BP, start_B, stop_B, block_size, self.device)

    attend = staticmethod(attention.attend)

    def kernel_name(self, dtype: torch.dtype, head_dim: int, groups: int) -> str:
        return "triton; rows and blocks in place"
