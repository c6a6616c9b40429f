"""Copy runs of slots to other slots, in the keys and values of all layers at once.

A run is small (a block of one layer: tens of KiB, 10 ns of a GPU's bandwidth), a launch is not (microseconds), so
one launch takes all runs in all layers. Their tensors share shape and strides; the kernel reads where each begins
from an array of addresses, made once. Runs are cut into pieces of one program each, which evens out their lengths.

S slots, H key/value heads, D head size, N runs, P pieces, X tensors (keys and values of each layer).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.errors import UsageError
from kvlab.kernels.gpu.runs import Ints, checked, pieces, waves

UNIT_BYTES = 16  # the widest load and store of a thread; everything is counted in these
WORDS = 4  # of int32, whatever the type of the elements, in a unit
TILE_UNITS = 1024  # of one program: 16 KiB
WARPS = 4


class Layers(NamedTuple):
    """The keys and values of all layers, laid out alike."""

    address_X: Tensor  # int64, on the device
    tensors: list[Tensor]  # held, so that the addresses stay theirs


def layers_of(layers: Sequence[tuple[Tensor, Tensor]]) -> Layers:
    """Of the k_SHD, v_SHD of each layer. UsageError: not laid out alike, or not made of whole units of 16 bytes."""
    tensors = [kv_SHD for layer in layers for kv_SHD in layer]
    layouts = {(x.dtype, x.device, x.shape, x.stride()) for x in tensors}
    if len(layouts) != 1:
        raise UsageError(f"{len(tensors)} tensors laid out in {len(layouts)} ways: allowed is one for all to be copied")
    first, itemsize = tensors[0], tensors[0].itemsize
    if first.dim() != 3 or first.stride(2) != 1:
        raise UsageError(f"shape {tuple(first.shape)}, strides {first.stride()}: allowed is [S, H, D], D contiguous")
    sizes = {"heads": first.shape[2], "slots": first.stride(0), "heads' stride": first.stride(1)}
    for name, size in sizes.items():
        if size * itemsize % UNIT_BYTES:
            raise UsageError(f"{name} of {size * itemsize} bytes: allowed are multiples of {UNIT_BYTES}")
    addresses = [x.data_ptr() for x in tensors]
    if any(address % UNIT_BYTES for address in addresses):
        raise UsageError(f"a tensor that begins in between: allowed are addresses that are multiples of {UNIT_BYTES}")
    return Layers(torch.tensor(addresses, dtype=torch.int64).to(first.device), tensors)


def copy(k_SHD: Tensor, v_SHD: Tensor, source_N: Ints, target_N: Ints, tokens_N: Ints) -> None:
    """The same for one layer."""
    copy_layers(layers_of([(k_SHD, v_SHD)]), source_N, target_N, tokens_N)


def copy_layers(layers: Layers, source_N: Ints, target_N: Ints, tokens_N: Ints) -> None:
    """Slots [source, source + tokens) to [target, target + tokens) for each run, as if one run after another.

    Runs that touch what another writes go into launches of their own, in order. UsageError: a run that leaves
    the slots or overlaps itself.
    """
    for run_3N in waves(checked(source_N, target_N, tokens_N, len(layers.tensors[0]))):
        _launch(layers, run_3N)


def _launch(layers: Layers, run_3N: Ints) -> None:
    """Copy runs that have nothing to do with one another."""
    first = layers.tensors[0]
    heads, head_dim = first.shape[1:]
    if first.stride(1) == head_dim:  # one contiguous piece
        heads, head_dim = 1, heads * head_dim
    units = head_dim * first.itemsize // UNIT_BYTES  # of a head
    width = triton.next_power_of_2(heads * units)
    tokens = max(1, TILE_UNITS // width)
    piece_3P = pieces(run_3N, tokens)
    here = torch.empty(piece_3P.shape, dtype=torch.int64, pin_memory=first.is_cuda)
    here.numpy()[:] = piece_3P
    stride_s, stride_h = (stride * first.itemsize // UNIT_BYTES for stride in first.stride()[:2])
    _copy[(piece_3P.shape[1], len(layers.tensors))](
        layers.address_X, here.to(first.device, non_blocking=True), piece_3P.shape[1], stride_s, stride_h,
        HEADS=heads, SIZE=units * WORDS, TOKENS=tokens, WIDTH=width * WORDS, UNIT=WORDS, num_warps=WARPS,
    )  # fmt: skip


@triton.jit
def _copy(
    address_X, piece_3P, count, stride_s, stride_h,
    HEADS: tl.constexpr, SIZE: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """A piece in one tensor, as words of int32; strides count units, which the compiler then knows to be aligned."""
    p_piece = piece_3P + tl.program_id(0)
    source, target, tokens = tl.load(p_piece), tl.load(p_piece + count), tl.load(p_piece + 2 * count)
    place = tl.load(address_X + tl.program_id(1)).to(tl.pointer_type(tl.int32))
    place = tl.multiple_of(place, 16)  # bytes
    o_T, o_W = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    i_W = o_W // SIZE
    o_TW = o_T.to(tl.int64)[:, None] * (stride_s * UNIT) + (i_W.to(tl.int64) * (stride_h * UNIT) + o_W % SIZE)[None, :]
    m_TW = (o_T < tokens)[:, None] & (i_W < HEADS)[None, :]
    b_TW = tl.load(place + source * (stride_s * UNIT) + o_TW, mask=m_TW)
    tl.store(place + target * (stride_s * UNIT) + o_TW, b_TW, mask=m_TW)
