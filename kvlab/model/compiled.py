"""A Llama's layers on the CPU through kernels/layer.c: two calls a layer and one for the logits, no torch between.

The numbers are the model's own type in memory and float inside a call: what torch would round between two operations
is not rounded here.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvlab.kernels.layer import LANES, CShape, CStep, CWeights, functions
from kvlab.model.shape import Shape

if TYPE_CHECKING:
    from kvlab.model.llama import Attention, Layer
    from kvlab.model.matrix import Matrix


class Compiled:
    """All layers of one model, and its logits."""

    def __init__(
        self, shape: Shape, layers: list[Layer], norm_C: Tensor, head: Matrix, cos_PD: Tensor, sin_PD: Tensor
    ) -> None:
        found = functions(norm_C.dtype)
        assert found is not None
        self.functions, self.kept, self.norm_C, self.head = found, layers, norm_C, head
        self.sizes, half = shape, shape.head_dim // 2
        self.cos_PK = cos_PD[:, :half].contiguous()
        self.sin_PK = sin_PD[:, half:].contiguous()  # its second half is the one that is not negated
        self.shape = CShape(
            shape.hidden, shape.ffn, shape.q_heads, shape.kv_heads, shape.head_dim, ctypes.c_float(shape.rms_eps)
        )
        self.layers = [ctypes.byref(_weights(layer, shape.q_heads * shape.head_dim)) for layer in layers]

    def __call__(self, x_TC: Tensor, position_T: Tensor, attention: Attention, rows_N: Tensor) -> Tensor:
        """logits_NV, float32. Overwrites x_TC. What attention is handed is overwritten once it has returned."""
        step, q_TQD, k_THD, v_THD, kept = self._step(x_TC, position_T)
        shape_at, step_at = ctypes.byref(self.shape), ctypes.byref(step)
        before, after = self.functions.before, self.functions.after
        for index, layer_at in enumerate(self.layers):
            before(shape_at, layer_at, step_at)
            o_TQD = attention(index, q_TQD, k_THD, v_THD).contiguous()
            after(shape_at, layer_at, step_at, o_TQD.data_ptr())
        del kept
        return self._logits(step, rows_N)

    def _step(self, x_TC: Tensor, position_T: Tensor) -> tuple[CStep, Tensor, Tensor, Tensor, list[Tensor]]:
        """With the queries, keys and values that a layer writes, and everything else that C has the address of."""
        shape, tokens, threads = self.sizes, len(x_TC), torch.get_num_threads()
        cos_TK, sin_TK = self.cos_PK[position_T], self.sin_PK[position_T]
        rows = self.functions.scratch_rows(tokens, threads)
        normed, inner = x_TC.new_empty(rows, shape.hidden), x_TC.new_empty(rows, shape.ffn)
        q_TQD = x_TC.new_empty(tokens, shape.q_heads, shape.head_dim)
        kv_TXHD = x_TC.new_empty(tokens, 2, shape.kv_heads, shape.head_dim)
        kept = [x_TC, q_TQD, kv_TXHD, cos_TK, sin_TK, normed, inner]
        step = CStep(tokens, *(tensor.data_ptr() for tensor in kept), threads)
        return step, q_TQD, kv_TXHD[:, 0], kv_TXHD[:, 1], kept

    def _logits(self, step: CStep, rows_N: Tensor) -> Tensor:
        rows_N = rows_N.contiguous()
        normed_NC = self.norm_C.new_empty(len(rows_N), self.sizes.hidden)
        logits_NV = torch.empty(len(rows_N), self.head.outputs)
        self.functions.logits(
            ctypes.byref(self.shape), self.norm_C.data_ptr(), ctypes.byref(self.head.c()), ctypes.byref(step),
            rows_N.data_ptr(), len(rows_N), normed_NC.data_ptr(), logits_NV.data_ptr(),
        )  # fmt: skip
        return logits_NV


def fits(shape: Shape, dtype: torch.dtype, device: str) -> bool:
    """Whether layer.c can run such a model: queries fill whole panels, and inputs come in pairs."""
    pairs = all(size % 2 == 0 for size in (shape.hidden, shape.ffn, shape.head_dim))
    return device == "cpu" and pairs and shape.q_heads * shape.head_dim % LANES == 0 and functions(dtype) is not None


def _weights(layer: Layer, queries: int) -> CWeights:
    """Queries, and keys with values, are two matrices, one behind the other."""
    qkv = layer.qkv
    matrices = (qkv.c(0, queries), qkv.c(queries), layer.out.c(), layer.gate_up.c(), layer.down.c())
    return CWeights(layer.attention_norm.data_ptr(), layer.mlp_norm.data_ptr(), *matrices)
