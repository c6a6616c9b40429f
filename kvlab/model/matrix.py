"""A weight matrix and how it is applied: oneDNN's packed product where this build of torch has it, else torch's own.

Packed, a decode step of a few sequences is two to four times as fast as through torch's default on the CPU (which
streams weights at a third of the memory bandwidth), and a row's result does not depend on how many rows share the
product. The two operators are those that torch's own compiler uses.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

ROWS = 16  # the packing is chosen for about so many rows; measured best from 1 to 512


class Matrix:
    """weight_OI, applied to x_TI."""

    def __init__(self, weight_OI: Tensor) -> None:
        self.packed = weight_OI.device.type == "cpu" and product_name(weight_OI.dtype) == "onednn packed"
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI, ROWS) if self.packed else weight_OI

    def __call__(self, x_TI: Tensor) -> Tensor:
        """x W^T, [T, O]."""
        if not self.packed:
            return linear(x_TI, self.weight)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x_TI, self.weight, None, "none", [], "")
        return product


def product_name(dtype: torch.dtype) -> str:
    """What matrices of that dtype are applied with on the CPU: "onednn packed" or "torch"."""
    known = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    supported = dtype is torch.float32 or (dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return "onednn packed" if known and supported else "torch"
