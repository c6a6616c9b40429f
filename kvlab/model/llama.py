"""Llama for inference: packed tokens in, logits out. Here in plain torch, for any device and type; what
kvlab.model.compiled can run goes through C.

The engine hands in the attention, a callable that stores a layer's new keys and values and attends over what
is stored; the model knows nothing of memory. Shapes: T packed tokens, C hidden size, F feed-forward size, Q query
heads, H key/value heads, J = Q + H, D head size, K = D / 2, N rows of logits, V vocabulary, P positions.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, silu

from kvlab.model.compiled import Compiled, fits
from kvlab.model.matrix import Matrix
from kvlab.model.shape import RopeScaling, Shape
from kvlab.model.weights import Weights


class Attention(Protocol):
    """Stores one layer's new keys and values, then attends. Gives and takes the model's dtype.

    What it is handed is overwritten once it has returned.
    The heads of a token lie side by side in memory; tokens may be further apart (views of a wider row).
    """

    def __call__(self, layer: int, q_TQD: Tensor, k_THD: Tensor, v_THD: Tensor, /) -> Tensor:
        """o_TQD."""
        ...


class Layer(NamedTuple):
    """One layer's weights; a row of a matrix is one output."""

    attention_norm: Tensor  # [C]
    qkv: Matrix  # [(Q + 2 H) D, C]
    out: Matrix  # [C, Q D]
    mlp_norm: Tensor  # [C]
    gate_up: Matrix  # [2 F, C]
    down: Matrix  # [C, F]

    @classmethod
    def read(cls, weights: Weights, index: int, compiled: bool, fused: bool) -> Layer:
        """Layer `index` of the weights; compiled: products may go through C, fused: the whole layer does."""
        norm_1, qkv, out, norm_2, gate_up, down = (weights[f"layers.{index}.{name}"] for name in cls._fields)
        matrix = partial(Matrix, compiled=compiled)
        return cls(norm_1, matrix(qkv), matrix(out), norm_2, matrix(gate_up, gated=fused), matrix(down))


class Llama:
    """The weights and how they are applied."""

    def __init__(self, shape: Shape, weights: Weights, compiled: bool = True) -> None:
        """compiled=False: in torch, also where C could do it."""
        self.shape = shape
        fused = compiled and fits(shape, weights["embed"].dtype, weights["embed"].device.type)
        if fused:  # matrices are copied; without the rest a file that weights were mapped from can go
            own = {name: weight.clone() for name, weight in weights.items() if weight.ndim == 1 or name == "embed"}
            weights = weights | own
        self.embed_VC, self.norm_C = weights["embed"], weights["norm"]
        self.head = Matrix(self.embed_VC if shape.tied else weights["head"], compiled=compiled)
        self.layers = [Layer.read(weights, index, compiled, fused) for index in range(shape.layers)]
        cos_PD, sin_PD = rotary_tables(shape)
        self.cos_PD, self.sin_PD = cos_PD.to(self.embed_VC), sin_PD.to(self.embed_VC)
        self.compiled = Compiled(shape, self.layers, self.norm_C, self.head, cos_PD, sin_PD) if fused else None

    @torch.inference_mode()
    def __call__(self, ids_T: Tensor, position_T: Tensor, attention: Attention, rows_N: Tensor) -> Tensor:
        """logits_NV after the packed tokens rows_N, float32 (float64 for a float64 model).

        ids_T, position_T and rows_N are int64; positions lie below shape.max_position.
        """
        x_TC = embedding(ids_T, self.embed_VC)
        if self.compiled is not None:
            return self.compiled(x_TC, position_T, attention, rows_N)
        cos_T1D, sin_T1D = self.cos_PD[position_T].unsqueeze(1), self.sin_PD[position_T].unsqueeze(1)
        for index, layer in enumerate(self.layers):
            q_TQD, k_THD, v_THD = self._qkv(layer, x_TC, cos_T1D, sin_T1D)
            o_TQD = attention(index, q_TQD, k_THD, v_THD)
            x_TC = x_TC + layer.out(o_TQD.reshape(len(x_TC), -1))
            gate_TF, up_TF = layer.gate_up(self._norm(x_TC, layer.mlp_norm)).chunk(2, dim=-1)
            x_TC = x_TC + layer.down(silu(gate_TF) * up_TF)
        logits_NV = self.head(self._norm(x_TC[rows_N], self.norm_C))
        return logits_NV.float() if logits_NV.dtype is torch.bfloat16 else logits_NV

    def _qkv(self, layer: Layer, x_TC: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; queries and keys, which lie side by side, are turned in one go."""
        shape = self.shape
        turned = shape.q_heads + shape.kv_heads
        qkv_TX = layer.qkv(self._norm(x_TC, layer.attention_norm))
        qkv_TXD = qkv_TX.view(len(x_TC), -1, shape.head_dim)
        qk_TJD = qkv_TXD[:, :turned]
        # sin_T1D carries the minus sign of the first half: (a, b) -> (a cos - b sin, b cos + a sin).
        half_turned_TJD = qk_TJD.roll(shape.head_dim // 2, dims=-1)
        qk_TJD = torch.addcmul(qk_TJD * cos_T1D, half_turned_TJD, sin_T1D)
        return qk_TJD[:, : shape.q_heads], qk_TJD[:, shape.q_heads :], qkv_TXD[:, turned:]

    def _norm(self, x_TC: Tensor, weight_C: Tensor) -> Tensor:
        return rms_norm(x_TC, weight_C.shape, weight_C, self.shape.rms_eps)


def rotary_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """cos_PD and sin_PD, float32; sin's first half is negated.

    A table, not a computation a step: a position's values must not depend on which tokens share its batch.
    Angles are rounded to float32 for every dtype, as they were when published models were trained.
    """
    exponent_K = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    frequency_K = 1.0 / float(shape.rope_theta) ** exponent_K
    if shape.rope_scaling:
        frequency_K = stretch(frequency_K, shape.rope_scaling)
    angle_PK = torch.arange(shape.max_position, dtype=torch.float32)[:, None] * frequency_K
    cos_PK, sin_PK = angle_PK.cos(), angle_PK.sin()
    return torch.cat((cos_PK, cos_PK), dim=-1), torch.cat((-sin_PK, sin_PK), dim=-1)


def stretch(frequency_K: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: waves longer than the original context slow down by `factor`, short ones stay;
    in between it goes over gradually.
    """
    # The order of operations is the usual one: rounded otherwise, far positions would turn by other angles.
    turns_K = scaling.original_max_position / (2 * math.pi / frequency_K)  # in the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_K = ((turns_K - low) / (high - low)).clamp(0, 1)
    return (1 - kept_K) * frequency_K / scaling.factor + kept_K * frequency_K
