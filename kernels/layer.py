"""layer.c as Python calls it: a layer of a Llama around its attention, its logits, and a product by itself.

Compiled for one element type; the C structures are mirrored here, in the same order. Shapes are those of
kvlab/model/llama.py.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvlab.kernels.compiler import CompileError, load

ELEMENTS = {torch.float32: "FLOAT32", torch.bfloat16: "BFLOAT16"}
LANES = 16  # outputs in a panel
POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int64


class CMatrix(ctypes.Structure):
    _fields_ = (("panels", POINTER), ("inputs", NUMBER), ("outputs", NUMBER))


class CShape(ctypes.Structure):
    _fields_ = (
        *((name, NUMBER) for name in ("hidden", "ffn", "q_heads", "kv_heads", "head_dim")),
        ("eps", ctypes.c_float),
    )


class CWeights(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("attention_norm", "mlp_norm")),
        *((name, CMatrix) for name in ("q", "kv", "out", "gate_up", "down")),
    )


class CStep(ctypes.Structure):
    _fields_ = (
        ("tokens", NUMBER),
        *((name, POINTER) for name in ("x", "q", "kv", "cos", "sin", "normed", "inner")),
        ("threads", NUMBER),
    )


class Functions(NamedTuple):
    """Of the library, for one element type."""

    before: Any
    after: Any
    logits: Any
    multiply_rows: Any
    scratch_rows: Any


@cache
def functions(dtype: torch.dtype) -> Functions | None:
    """None: it cannot be compiled here; the reason is logged once."""
    if dtype not in ELEMENTS:
        return None
    try:
        library = load(Path(__file__).with_name("layer.c"), (ELEMENTS[dtype],))
    except CompileError as error:
        logging.getLogger(__name__).warning("layers run in torch, op by op, which is slower: %s", error)
        return None
    found = Functions(
        library.layer_before, library.layer_after, library.logits, library.multiply_rows, library.scratch_rows
    )
    found.before.argtypes = [POINTER] * 3
    found.after.argtypes = [POINTER] * 4
    found.logits.argtypes = [*[POINTER] * 5, NUMBER, POINTER, POINTER]
    found.multiply_rows.argtypes = [POINTER, POINTER, NUMBER, POINTER, NUMBER]
    found.scratch_rows.argtypes, found.scratch_rows.restype = [NUMBER, NUMBER], NUMBER
    for function in found[:4]:
        function.restype = None
    return found


def panels(weight_OI: Tensor) -> Tensor:
    """The weights in panels [O / LANES, I / step, LANES, step], where a step is as many inputs as fit 4 bytes.

    The last panel is filled up with zeros.
    """
    outputs, inputs = weight_OI.shape
    step = 4 // weight_OI.itemsize
    whole_OI = pad(weight_OI, (0, 0, 0, -outputs % LANES))
    return whole_OI.view(-1, LANES, inputs // step, step).transpose(1, 2).contiguous()


def interleaved(gate_up_OI: Tensor) -> Tensor:
    """The rows of gate and up, stacked, so that their panels take turns; each is filled up to whole panels."""
    halves = (pad(half_FI, (0, 0, 0, -len(half_FI) % LANES)).view(-1, LANES, half_FI.shape[1])
              for half_FI in gate_up_OI.chunk(2))  # fmt: skip
    return torch.stack(tuple(halves), dim=1).flatten(0, 2)
