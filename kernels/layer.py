"""layer.c as Python calls it: a layer of a Llama around its attention, its logits, and a product by itself.

Compiled for one element type; the C structures are mirrored here, in the same order. Shapes are those of
kvlab/model/llama.py.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvlab.kernels.compiler import CompileError, in_torch, load

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
    pack: Any
    scratch_rows: Any


@cache
def functions(dtype: torch.dtype) -> Functions | None:
    """None: it cannot be compiled here; the reason is said once."""
    if dtype not in ELEMENTS:
        return None
    try:
        library = load(Path(__file__).with_name("layer.c"), (ELEMENTS[dtype],))
    except CompileError as error:
        in_torch("layers run", error)
        return None
    found = Functions(
        library.layer_before, library.layer_after, library.logits, library.multiply_rows, library.pack,
        library.scratch_rows,
    )  # fmt: skip
    found.before.argtypes = [POINTER] * 3
    found.after.argtypes = [POINTER] * 4
    found.logits.argtypes = [*[POINTER] * 5, NUMBER, POINTER, POINTER]
    found.multiply_rows.argtypes = [POINTER, POINTER, NUMBER, POINTER, NUMBER]
    found.pack.argtypes = [POINTER, NUMBER, NUMBER, POINTER, NUMBER, NUMBER]
    found.scratch_rows.argtypes, found.scratch_rows.restype = [NUMBER, NUMBER], NUMBER
    for function in found[:5]:
        function.restype = None
    return found


def panels(weight_OI: Tensor, gated: bool = False) -> Tensor:
    """The weights in panels [O / LANES, I / step, LANES, step], where a step is as many inputs as fit 4 bytes.

    What is missing of a last panel is zeros. gated: weight_OI is two matrices, whose panels take turns.
    """
    found, parts = functions(weight_OI.dtype), weight_OI.contiguous().chunk(2 if gated else 1)
    assert found is not None
    outputs, inputs = parts[0].shape
    step, every = 4 // weight_OI.itemsize, len(parts)
    packed = weight_OI.new_empty(every * -(-outputs // LANES), inputs // step, LANES, step)
    for index, part in enumerate(parts):
        found.pack(part.data_ptr(), outputs, inputs, packed[index].data_ptr(), every, torch.get_num_threads())
    return packed
