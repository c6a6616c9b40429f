"""A weight matrix and how it is applied: through kernels/layer.c where it compiles, else oneDNN's packed product where
this build of torch has it, else torch's own.

In the first two the weights lie as the product reads them, and a row's result does not depend on how many rows share
it. oneDNN's two operators are those that torch's own compiler uses.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.nn.functional import linear

from kvlab.kernels.layer import LANES, CMatrix, functions, panels

ROWS = 16  # oneDNN's packing is chosen for about so many rows; measured best from 1 to 512


class Matrix:
    """weight_OI, applied to x_TI."""

    def __init__(self, weight_OI: Tensor, gated: bool = False, compiled: bool = True) -> None:
        """gated: as kernels/layer.c takes gates and values, which it applies together. compiled=False: without C."""
        self.outputs, self.inputs = weight_OI.shape
        self.product = product_name(weight_OI, compiled)
        match self.product:
            case "c":
                self.weight = panels(weight_OI, gated)
                self.outputs = len(self.weight) * LANES if gated else self.outputs  # each half fills up its last panel
            case "onednn packed":
                self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI, ROWS)
            case _:
                self.weight = weight_OI

    def __call__(self, x_TI: Tensor) -> Tensor:
        """x W^T, [T, O]."""
        match self.product:
            case "c":
                return self._compiled(x_TI)
            case "onednn packed":
                product: Tensor = torch.ops.mkldnn._linear_pointwise(x_TI, self.weight, None, "none", [], "")
                return product
            case _:
                return linear(x_TI, self.weight)

    def _compiled(self, x_TI: Tensor) -> Tensor:
        found, x_TI = functions(x_TI.dtype), x_TI.contiguous()
        assert found is not None
        to_TO = x_TI.new_empty(len(x_TI), self.outputs)
        matrix = ctypes.byref(self.c())
        found.multiply_rows(matrix, x_TI.data_ptr(), len(x_TI), to_TO.data_ptr(), torch.get_num_threads())
        return to_TO

    def c(self, first: int = 0, last: int | None = None) -> CMatrix:
        """The outputs [first, last) as C sees them; `first` begins a panel."""
        assert self.product == "c"
        assert first % LANES == 0
        stop = self.outputs if last is None else last
        return CMatrix(self.weight.data_ptr() + first * self.inputs * self.weight.itemsize, self.inputs, stop - first)


def product_name(weight_OI: Tensor, compiled: bool = True) -> str:
    """What such a matrix is applied with: "c", "onednn packed" or "torch"."""
    if weight_OI.device.type != "cpu":
        return "torch"
    if compiled and functions(weight_OI.dtype) is not None and weight_OI.shape[1] * weight_OI.itemsize % 4 == 0:
        return "c"
    return "onednn packed" if onednn_packs(weight_OI.dtype) else "torch"


def onednn_packs(dtype: torch.dtype) -> bool:
    known = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    return known and (
        dtype is torch.float32 or (dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )
