"""Reading memory from its first byte to its last, in C: what this machine's memory gives a kernel at best."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvlab.kernels.compiler import load


@cache
def _function() -> Any:
    function = load(Path(__file__).with_name("stream.c"), ()).stream
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int], ctypes.c_uint64
    return function


def stream(x: Tensor) -> int:
    """Exclusive or of the contiguous tensor's 8-byte words, up to a multiple of 64 bytes. CompileError: no compiler."""
    assert x.is_contiguous()
    return int(_function()(x.data_ptr(), x.nbytes, torch.get_num_threads()))
