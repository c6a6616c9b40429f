"""`attention=sdpa` on a CUDA device: the FlashAttention-2 that torch brings, unmodified, over a strategy's rows.

It is an operator without a promise, so its schema is looked at before the first launch. One call takes sequences of
any lengths whose rows start anywhere, and reads none beyond its length: their tails may be unmapped. Blocks are
gathered into rows first, in every layer. This adapter has never run on a device; the operator alone, called over rows
with unmapped tails in this way, was right on an H200 with torch 2.11.

B sequences, C = B + 1, N tokens of the sequences of a part, T new ones, Q query heads, H key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.attentions.parts import Launch, Part, attend_parts, make_launch
from kvlab.errors import UsageError

POSITIONS = (
    "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask",
)  # fmt: skip
KEYWORDS = ("scale", "seqused_k")


class Places(NamedTuple):
    """Where the keys and values of a part's sequences lie."""

    first_C: Tensor  # int32: the first slot of each sequence's row; what comes last is not read
    slot_N: Tensor | None  # int64: what to gather first, so that the rows are there; None: they are in place


class View(NamedTuple):
    launch: Launch
    places: tuple[Places, ...]  # of each part
    slot_T: Tensor


class Flash2:
    """Rows and blocks in float16 and bfloat16. UsageError: this torch's operator takes other arguments."""

    def __init__(self, device: str, function: Callable[..., Any] | None = None) -> None:
        self.device, self.function = device, function or operator()

    def make_view(
        self, table_BP: NDArray[np.int32], start_B: NDArray[np.int64], stop_B: NDArray[np.int64], block_size: int | None
    ) -> View:
        launch = make_launch(table_BP, start_B, stop_B, block_size, self.device)
        return View(launch, tuple(places(part, block_size) for part in launch.parts), launch.slot_T)

    def attend(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: View, scale: float) -> Tensor:
        def compute(index: int, q_TQD: Tensor) -> Tensor:
            part, (first_C, slot_N) = view.launch.parts[index], view.places[index]
            k_NHD, v_NHD = (x if slot_N is None else x.index_select(0, slot_N) for x in (k_SHD, v_SHD))
            o_TQD: Tensor = self.function(
                q_TQD, k_NHD, v_NHD, part.query_C, first_C, part.most, part.longest,
                0.0, part.most > 1, False, scale=scale, seqused_k=part.length_B,
            )[0]  # fmt: skip
            return o_TQD

        return attend_parts(q_TQD, view.launch, compute)

    def kernel_name(self, dtype: torch.dtype, head_dim: int, groups: int) -> str:
        return "torch FlashAttention-2; rows in place, blocks gathered in every layer"


def operator(schema: str | None = None) -> Callable[..., Any]:
    """torch's operator. UsageError: it lacks an argument that is passed here, or has them in another order.

    schema: what it is said to take; None: what it says itself.
    """
    found = torch.ops.aten._flash_attention_forward.default
    told = torch._C.parse_schema(schema) if schema else found._schema
    names = [argument.name for argument in told.arguments]
    if tuple(names[: len(POSITIONS)]) != POSITIONS or not set(KEYWORDS) <= set(names):
        raise UsageError(
            f"attention=sdpa: _flash_attention_forward of torch {torch.__version__} takes {', '.join(names)}, "
            f"not {', '.join(POSITIONS + KEYWORDS)}; take another torch, or attention=kvlab"
        )
    function: Callable[..., Any] = found
    return function


def places(part: Part, block_size: int | None) -> Places:
    """Rows in place; of blocks, the rows that gathering makes of them, one after another."""
    if block_size is None:
        return Places(torch.nn.functional.pad(part.table_BP[:, 0], (0, 1)), None)
    total = int(part.tokens_B.sum(dtype=np.int64))
    first_C = torch.nn.functional.pad(part.length_B.cumsum(0, dtype=torch.int32), (1, 0))
    sequence_B = torch.arange(len(part.tokens_B), device=first_C.device)
    sequence_N = torch.repeat_interleave(sequence_B, part.length_B, output_size=total)
    position_N = torch.arange(total, device=first_C.device) - first_C[sequence_N]
    block_N = part.table_BP[sequence_N, position_N // block_size].long()
    return Places(first_C, block_N * block_size + position_N % block_size)
