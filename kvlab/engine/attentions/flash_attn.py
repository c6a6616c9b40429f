"""`attention=flash_attn`: the package flash-attn (FlashAttention-2 by its authors), unmodified, on a CUDA device.

All calls are flash_attn_with_kvcache, which alone of its public functions reads keys and values that do not lie back
to back (flash_attn_varlen_func knows no lengths apart from the places). Sequences with equally many new tokens share
a call: all that decode do. Written from the package's documented arguments (2.8); it has never run on a device.

B sequences, T new tokens, N of each, Q query heads, S slots, H key/value heads, D head size, W first slots.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.attentions.limits import LIMITS, check_block_size, check_package
from kvlab.engine.attentions.parts import Launch, Part, alike, attend_parts, make_launch
from kvlab.errors import UsageError

GIVEN, OWN = "attention=flash_attn", LIMITS["kvlab.engine.attentions.flash_attn.FlashAttn"]
KEYWORDS = ("cache_seqlens", "cache_batch_idx", "cache_leftpad", "block_table", "softmax_scale", "causal")


class FlashAttn:
    """What the configuration names; it needs a device to become something that attends."""

    def on(self, device: str) -> FlashAttnKernels:
        check_package(GIVEN, OWN, device)
        return FlashAttnKernels(device, checked(import_module(OWN.module).flash_attn_with_kvcache))


def checked(with_kvcache: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same. UsageError: that version of it lacks an argument that is passed here."""
    lacking = [name for name in KEYWORDS if name not in signature(with_kvcache).parameters]
    if lacking:
        raise UsageError(
            f"{GIVEN}: its flash_attn_with_kvcache has no {', '.join(lacking)}; allowed is flash-attn>=2.8"
        )
    return with_kvcache


class FlashAttnKernels:
    """Rows that start anywhere, and blocks of multiples of 256 slots, in float16 and bfloat16."""

    def __init__(self, device: str, with_kvcache: Callable[..., Tensor]) -> None:
        self.device, self.with_kvcache = device, with_kvcache

    def make_view(
        self, table_BP: NDArray[np.int32], start_B: NDArray[np.int64], stop_B: NDArray[np.int64], block_size: int | None
    ) -> Launch:
        check_block_size(GIVEN, OWN, block_size)
        return make_launch(table_BP, start_B, stop_B, block_size, self.device, alike)

    def attend(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: Launch, scale: float) -> Tensor:
        over = over_rows if view.block_size is None else over_blocks

        def compute(index: int, q_TQD: Tensor) -> Tensor:
            part = view.parts[index]
            q_BNQD = q_TQD.view(-1, part.most, *q_TQD.shape[1:])
            k, v, where = over(k_SHD, v_SHD, part, view.block_size or 1)
            return self.with_kvcache(q_BNQD, k, v, softmax_scale=scale, causal=True, **where).flatten(0, 1)

        return attend_parts(q_TQD, view, compute)

    def kernel_name(self, dtype: torch.dtype, head_dim: int, groups: int) -> str:
        return "flash_attn_with_kvcache; rows and blocks in place"


Where = tuple[Tensor, Tensor, dict[str, Tensor]]  # keys, values, and which of them each sequence reads


def over_rows(k_SHD: Tensor, v_SHD: Tensor, part: Part, block_size: int) -> Where:
    """A cache with an entry for every slot that a row may start at, each as long as the longest sequence.

    The entries overlap, nothing is copied. Rows too near the end for an entry of their own begin inside the last.
    """
    last = len(k_SHD) - part.longest
    entry_B = part.table_BP[:, 0].clamp(max=last)
    before_B = part.table_BP[:, 0] - entry_B
    k_WNHD, v_WNHD = (_overlapping(x_SHD, last + 1, part.longest) for x_SHD in (k_SHD, v_SHD))
    lengths = {"cache_seqlens": part.length_B + before_B, "cache_leftpad": before_B}
    return k_WNHD, v_WNHD, {"cache_batch_idx": entry_B, **lengths}


def over_blocks(k_SHD: Tensor, v_SHD: Tensor, part: Part, block_size: int) -> Where:
    whole = len(k_SHD) // block_size * block_size
    k, v = (x_SHD[:whole].view(-1, block_size, *x_SHD.shape[1:]) for x_SHD in (k_SHD, v_SHD))
    return k, v, {"cache_seqlens": part.length_B, "block_table": part.table_BP}


def _overlapping(x_SHD: Tensor, entries: int, tokens: int) -> Tensor:
    """[entries, tokens, H, D]: entry i begins at slot i."""
    slot, head, element = x_SHD.stride()
    return x_SHD.as_strided((entries, tokens, *x_SHD.shape[1:]), (slot, slot, head, element))
