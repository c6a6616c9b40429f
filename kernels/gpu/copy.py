"""Copy runs of slots to other slots, in the keys and values of all layers at once.

A run is small (a block of one layer: tens of KiB, 10 ns of a GPU's bandwidth), a launch is not (microseconds), so
one launch takes all runs in all layers. Their tensors share shape and strides; the kernel reads where each begins
from an array of addresses, made once. Runs are cut into pieces of one program each, which evens out their lengths.

S slots, H key/value heads, D head size, N runs, P pieces, X tensors (keys and values of each layer).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from kvlab.errors import UsageError

UNIT_BYTES = 16  # the widest load and store of a thread; everything is counted in these
WORDS = 4  # of int32, whatever the type of the elements, in a unit
TILE_UNITS = 1024  # of one program: 16 KiB
WARPS = 4

Ints = NDArray[np.int64]


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
    if not len(source_N) == len(target_N) == len(tokens_N):
        counts = len(source_N), len(target_N), len(tokens_N)
        raise UsageError(f"{counts} sources, targets, lengths: allowed is one of each")
    run_3N = np.stack([source_N, target_N, tokens_N]).astype(np.int64)
    _check(run_3N, len(layers.tensors[0]))
    for wave_3N in _waves(run_3N):
        _launch(layers, wave_3N)


def _launch(layers: Layers, run_3N: Ints) -> None:
    """Copy runs that have nothing to do with one another."""
    first = layers.tensors[0]
    heads, head_dim = first.shape[1:]
    if first.stride(1) == head_dim:  # one contiguous piece
        heads, head_dim = 1, heads * head_dim
    units = head_dim * first.itemsize // UNIT_BYTES  # of a head
    width = triton.next_power_of_2(heads * units)
    tokens = max(1, TILE_UNITS // width)
    piece_3P = _pieces(run_3N, tokens)
    here = torch.empty(piece_3P.shape, dtype=torch.int64, pin_memory=first.is_cuda)
    here.numpy()[:] = piece_3P
    stride_s, stride_h = (stride * first.itemsize // UNIT_BYTES for stride in first.stride()[:2])
    _copy[(piece_3P.shape[1], len(layers.tensors))](
        layers.address_X, here.to(first.device, non_blocking=True), piece_3P.shape[1], stride_s, stride_h,
        HEADS=heads, SIZE=units * WORDS, TOKENS=tokens, WIDTH=width * WORDS, UNIT=WORDS, num_warps=WARPS,
    )  # fmt: skip


@triton.jit
def _copy(
    address_X, piece_3P, pieces, stride_s, stride_h,
    HEADS: tl.constexpr, SIZE: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """A piece in one tensor, as words of int32; strides count units, which the compiler then knows to be aligned."""
    p_piece = piece_3P + tl.program_id(0)
    source, target, tokens = tl.load(p_piece), tl.load(p_piece + pieces), tl.load(p_piece + 2 * pieces)
    place = tl.load(address_X + tl.program_id(1)).to(tl.pointer_type(tl.int32))
    place = tl.multiple_of(place, 16)  # bytes
    o_T, o_W = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    i_W = o_W // SIZE
    o_TW = o_T.to(tl.int64)[:, None] * (stride_s * UNIT) + (i_W.to(tl.int64) * (stride_h * UNIT) + o_W % SIZE)[None, :]
    m_TW = (o_T < tokens)[:, None] & (i_W < HEADS)[None, :]
    b_TW = tl.load(place + source * (stride_s * UNIT) + o_TW, mask=m_TW)
    tl.store(place + target * (stride_s * UNIT) + o_TW, b_TW, mask=m_TW)


def _check(run_3N: Ints, slots: int) -> None:
    source_N, target_N, tokens_N = run_3N
    lower_N, upper_N = np.minimum(source_N, target_N), np.maximum(source_N, target_N)
    wrong_N = (tokens_N < 1) | (lower_N < 0) | (upper_N > slots - tokens_N) | (upper_N - lower_N < tokens_N)
    for source, target, tokens in run_3N[:, wrong_N].T.tolist():
        run = f"{tokens} tokens from slot {source} to {target}"
        raise UsageError(f"{run}: allowed is 1 or more, within {slots} slots, not over themselves")


def _waves(run_3N: Ints) -> Iterator[Ints]:
    """The runs in order, in groups within which no run touches what another writes."""
    count = run_3N.shape[1]
    if not count:
        return
    if count == 1 or _independent(run_3N):
        yield run_3N
        return
    for half_3N in (run_3N[:, : count // 2], run_3N[:, count // 2 :]):
        yield from _waves(half_3N)


def _independent(run_3N: Ints) -> bool:
    source_N, target_N, tokens_N = run_3N[:, np.argsort(run_3N[1])]
    stop_N = target_N + tokens_N
    if (stop_N[:-1] > target_N[1:]).any():
        return False
    index_N = np.searchsorted(stop_N, source_N, side="right")  # the first target that ends behind the source's start
    start_N = np.append(target_N, np.iinfo(np.int64).max)[index_N]
    return bool((source_N + tokens_N <= start_N).all())


def _pieces(run_3N: Ints, tokens: int) -> Ints:
    """The runs cut into pieces of at most `tokens` tokens."""
    source_N, target_N, tokens_N = run_3N
    pieces_N = -(-tokens_N // tokens)
    index_P = np.repeat(np.arange(len(pieces_N)), pieces_N)
    done_P = (np.arange(len(index_P)) - np.repeat(np.cumsum(pieces_N) - pieces_N, pieces_N)) * tokens
    left_P = tokens_N[index_P] - done_P
    return np.stack([source_N[index_P] + done_P, target_N[index_P] + done_P, np.minimum(left_P, tokens)])
