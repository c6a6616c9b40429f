"""`attention=flashinfer`: the package flashinfer, unmodified, on a CUDA device.

Its paged kernels read both geometries: blocks of any size as its pages, rows as pages that lie one after another,
as large as the places where rows start allow (at most 256 slots). It plans on the host, once a launch, at the first
layer. Written from the package's documented arguments (0.7); it has never run on a device.

B sequences, T new tokens, P pages of a sequence at most, N pages of all, Q query heads, S slots, H key/value heads,
D head size, C = B + 1.
"""

from __future__ import annotations

from importlib import import_module
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.attentions.limits import LIMITS, check_package
from kvlab.engine.attentions.parts import Launch, Part, attend_parts, make_launch

GIVEN, OWN = "attention=flashinfer", LIMITS["kvlab.engine.attentions.flashinfer.FlashInfer"]
WORKSPACE_BYTES = 128 * 2**20  # what it recommends; on the device, beside the pool
LARGEST_PAGE = 256  # slots, of a row; larger ones save nothing more


class FlashInfer:
    """What the configuration names; it needs a device to become something that attends."""

    def on(self, device: str) -> FlashInferKernels:
        check_package(GIVEN, OWN, device)
        return FlashInferKernels(device, import_module(OWN.module))


class Pages(NamedTuple):
    """The pages of each sequence of a part, on the host, as flashinfer wants them."""

    first_C: Tensor  # int32: pages before each sequence, and all of them
    page_N: Tensor  # int32
    last_B: Tensor  # int32: tokens in each sequence's last page
    page_size: int


class FlashInferKernels:
    """Rows and blocks in float16 and bfloat16, heads of 64, 128 and 256."""

    def __init__(self, device: str, package: Any, workspace_bytes: int = WORKSPACE_BYTES) -> None:
        workspace = torch.zeros(workspace_bytes, dtype=torch.uint8, device=device)
        # Of its kernels those whose loads go no further than a sequence's length: what lies behind may be unmapped.
        # Tensor cores take any number of query heads a key/value head.
        options = {"kv_layout": "NHD", "backend": "fa2"}
        self.decode = package.BatchDecodeWithPagedKVCacheWrapper(workspace, use_tensor_cores=True, **options)
        self.prefill = package.BatchPrefillWithPagedKVCacheWrapper(workspace, **options)
        self.device = device
        self.planned: Launch | None = None  # the launch that the wrappers' plans are of
        self.page_sizes: list[int] = []  # of its parts

    def make_view(
        self, table_BP: NDArray[np.int32], start_B: NDArray[np.int64], stop_B: NDArray[np.int64], block_size: int | None
    ) -> Launch:
        return make_launch(table_BP, start_B, stop_B, block_size, self.device)

    def attend(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: Launch, scale: float) -> Tensor:
        if self.planned is not view:
            self.page_sizes = [self._plan(part, q_TQD, k_SHD, view, scale) for part in view.parts]
            self.planned = view

        def compute(index: int, q_TQD: Tensor) -> Tensor:
            wrapper = self.decode if view.parts[index].most == 1 else self.prefill
            cache = tuple(in_pages(x_SHD, self.page_sizes[index]) for x_SHD in (k_SHD, v_SHD))
            o_TQD: Tensor = wrapper.run(q_TQD, cache)
            return o_TQD

        return attend_parts(q_TQD, view, compute)

    def kernel_name(self, dtype: torch.dtype, head_dim: int, groups: int) -> str:
        return "flashinfer paged fa2; blocks as pages, rows as pages in order"

    def _plan(self, part: Part, q_TQD: Tensor, k_SHD: Tensor, view: Launch, scale: float) -> int:
        """The size of the pages that it planned for."""
        first_C, page_N, last_B, page_size = pages(part, view.block_size, len(k_SHD))
        heads = (q_TQD.shape[1], k_SHD.shape[1], q_TQD.shape[2], page_size)
        options = {"q_data_type": q_TQD.dtype, "kv_data_type": k_SHD.dtype, "sm_scale": scale}
        if part.most == 1:
            self.decode.plan(first_C, page_N, last_B, *heads, **options)
        else:
            query_C = torch.from_numpy(part.before_C)
            self.prefill.plan(query_C, first_C, page_N, last_B, *heads, causal=True, **options)
        return page_size


def pages(part: Part, block_size: int | None, slots: int) -> Pages:
    """Blocks are pages; a row is cut into pages of a size that divides the slot it starts at and the pool."""
    page_size = block_size or gcd(LARGEST_PAGE, slots, *part.blocks_BP[:, 0].tolist())
    count_B = -(-part.tokens_B // page_size)
    number_P = np.arange(count_B.max(), dtype=np.int32)
    page_BP = part.blocks_BP if block_size else part.blocks_BP // page_size + number_P
    page_N = page_BP[number_P < count_B[:, None]]
    first_C = np.append(0, np.cumsum(count_B)).astype(np.int32)
    last_B = (part.tokens_B - (count_B - 1) * page_size).astype(np.int32)
    return Pages(torch.from_numpy(first_C), torch.from_numpy(page_N), torch.from_numpy(last_B), page_size)


def in_pages(x_SHD: Tensor, page_size: int) -> Tensor:
    """[S // page_size, page_size, H, D], in place."""
    whole = len(x_SHD) // page_size * page_size
    return x_SHD[:whole].view(-1, page_size, *x_SHD.shape[1:])
