"""Write the keys and values of a launch's new tokens into their slots, both in one launch of one program a token.

T packed new tokens, S slots, H key/value heads, D head size; in a program W elements of a token, all heads'.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.errors import UsageError

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WARP_BYTES = 32 * 16  # what a warp moves at once, 16 bytes a thread
MOST_WARPS = 8


class _Shape(NamedTuple):
    """How a token's elements lie: `heads` pieces of `size` contiguous elements."""

    heads: int
    size: int
    width: int  # heads * size or more, a power of two
    warps: int


def append(k_SHD: Tensor, v_SHD: Tensor, slot_T: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
    """Token t's key and value go to slot slot_T[t], int64, each slot at most once; -1, a padding token: nowhere.

    Slots and tokens may lie any distance apart, heads of a slot too; slots are not checked. UsageError: the
    tensors do not fit together.
    """
    targets, sources = (k_SHD, v_SHD), (k_THD, v_THD)
    if not len(k_THD) == len(v_THD) == len(slot_T):
        raise UsageError(f"{len(slot_T)} slots for {len(k_THD)} keys, {len(v_THD)} values: allowed is one each")
    if slot_T.dtype != torch.int64 or slot_T.stride() != (1,) or slot_T.device != k_SHD.device:
        raise UsageError(
            f"slots of {slot_T.dtype} on {slot_T.device}: allowed is int64, contiguous, where the keys are"
        )
    layouts = tuple((x.dtype, x.device, x.shape[1:], x.stride()) for x in (*targets, *sources))
    shape = _shape(layouts)
    if not len(slot_T):
        return
    _append[(len(slot_T),)](
        k_SHD, v_SHD, slot_T, k_THD, v_THD,
        *k_SHD.stride()[:2], *k_THD.stride()[:2], *v_THD.stride()[:2],
        HEADS=shape.heads, SIZE=shape.size, WIDTH=shape.width, num_warps=shape.warps,
    )  # fmt: skip


@triton.jit
def _append(
    k_SHD, v_SHD, slot_T, k_THD, v_THD,
    stride_s, stride_h, stride_kt, stride_kh, stride_vt, stride_vh,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    i_t = tl.program_id(0).to(tl.int64)
    o_W = tl.arange(0, WIDTH)
    i_W, o_W = o_W // SIZE, o_W % SIZE
    m_W = i_W < HEADS
    b_k = tl.load(k_THD + i_t * stride_kt + i_W * stride_kh + o_W, mask=m_W)
    b_v = tl.load(v_THD + i_t * stride_vt + i_W * stride_vh + o_W, mask=m_W)
    slot = tl.load(slot_T + i_t)
    place_W = slot * stride_s + i_W.to(tl.int64) * stride_h + o_W
    m_W = i_W < tl.where(slot >= 0, HEADS, 0)  # a padding token has none
    tl.store(k_SHD + place_W, b_k, mask=m_W)
    tl.store(v_SHD + place_W, b_v, mask=m_W)


@cache
def _shape(layouts: tuple[tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]], ...]) -> _Shape:
    """Of targets' keys and values, then sources'; checked once for each layout. UsageError."""
    dtypes, devices, shapes, strides = zip(*layouts, strict=True)
    if len(set(dtypes)) > 1 or dtypes[0] not in DTYPES:
        raise UsageError(f"slots and tokens of {dtypes}: allowed is one of {DTYPES} for all")
    if len(set(devices)) > 1:
        raise UsageError(f"slots and tokens on {devices}: allowed is one device")
    if len(set(shapes)) > 1 or len(shapes[0]) != 2:
        raise UsageError(f"slots and tokens of shapes {[*map(tuple, shapes)]}: allowed is one, [heads, head size]")
    if strides[0] != strides[1] or any(stride[2] != 1 for stride in strides):
        raise UsageError(f"strides {strides}: allowed are slots laid out alike, and a last stride of 1")
    heads, head_dim = shapes[0]
    if all(stride[1] == head_dim for stride in strides):  # one contiguous piece
        heads, head_dim = 1, heads * head_dim
    warp = WARP_BYTES // dtypes[0].itemsize
    width = max(warp, triton.next_power_of_2(heads * head_dim))  # threads are idle rather than their stores narrower
    return _Shape(heads, head_dim, width, min(MOST_WARPS, width // warp))
