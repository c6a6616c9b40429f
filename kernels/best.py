"""The largest and the second largest logit of each row: best.c, or torch where it cannot be compiled."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvlab.kernels.compiler import CompileError, in_torch, load


def best_two(logits_NV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(token_N, int64, the first of equals; its logit; the second largest logit, [N] as the logits).

    A row that has a NaN has NaN for its largest, and any token. May overwrite the logits.
    """
    compiled = _function() if logits_NV.dtype is torch.float32 and logits_NV.device.type == "cpu" else None
    if compiled is None or not logits_NV.is_contiguous():
        return _by_torch(logits_NV)
    rows, size = logits_NV.shape
    token_N, best_N, second_N = torch.empty(rows, dtype=torch.int64), torch.empty(rows), torch.empty(rows)
    compiled(
        logits_NV.data_ptr(), rows, size, token_N.data_ptr(), best_N.data_ptr(), second_N.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return token_N, best_N, second_N


def _by_torch(logits_NV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    best_N, token_N = logits_NV.max(dim=1)
    logits_NV.scatter_(1, token_N[:, None], float("-inf"))
    return token_N, best_N, logits_NV.amax(dim=1)


@cache
def _function() -> Any:
    try:
        function = load(Path(__file__).with_name("best.c"), ()).best_two
    except CompileError as error:
        in_torch("tokens are chosen", error)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes, function.restype = [pointer, number, number, *[pointer] * 3, ctypes.c_int], None
    return function
