"""Copy keys and values from slots to slots: through the C kernel on a CPU, through torch where it is not to be had.

A pool is k_SHD or k_UHWD, see pool.py; the two of one copy may be laid out differently.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.kernels.compiler import CompileError, in_torch, load
from kvlab.kernels.pool import heads_of, pool_of, put, take
from kvlab.moves import Copy


class Stretches(NamedTuple):
    """C stretches of slots, copied one after another."""

    source_C: NDArray[np.int64]  # first slot
    target_C: NDArray[np.int64]
    tokens_C: NDArray[np.int64]


def copy(k_pool: Tensor, v_pool: Tensor, source: int, target: int, tokens: int) -> None:
    """Slots [source, source + tokens) to [target, target + tokens); the two never overlap."""
    copy_all([(k_pool, v_pool)], [Copy(source, target, tokens)])


def copy_all(layers: Sequence[tuple[Tensor, Tensor]], moves: Sequence[Copy], compiled: bool = True) -> None:
    """Carry the copies out in order, in all layers, which are laid out alike. compiled=False leaves C out."""
    for move in moves:
        apart = abs(move.source - move.target) >= move.tokens
        assert apart, f"{move.tokens} tokens from {move.source} to {move.target} overlap"
    pools = [pool for layer in layers for pool in layer]
    stretches_3C = np.array([move[:3] for move in moves], np.int64).reshape(-1, 3).T.copy()
    transfer(pools, pools, Stretches(*stretches_3C), compiled)


def stretch(source: int, target: int, tokens: int) -> Stretches:
    """A single one."""
    return Stretches(*np.array([[source], [target], [tokens]], np.int64))


def transfer(sources: list[Tensor], targets: list[Tensor], stretches: Stretches, compiled: bool = True) -> None:
    """Copy the stretches from each tensor of `sources`, all laid out alike, to its like in `targets`, so too."""
    on_cpu = sources[0].is_cpu and targets[0].is_cpu
    function = kernel() if compiled and on_cpu else None
    if function is None:
        for pair in zip(sources, targets, strict=True):
            _transfer(*pair, stretches)
        return
    first, other = sources[0], targets[0]
    assert first.dtype == other.dtype, "slots are copied as they are"
    heads, size = heads_of(first), first.element_size()
    function(
        _addresses(sources), ctypes.byref(pool_of(first)), _addresses(targets), ctypes.byref(pool_of(other)),
        len(sources), *(x_C.ctypes.data for x_C in stretches), len(stretches.tokens_C),
        heads, first.shape[-1] * size, size, torch.get_num_threads(),
    )  # fmt: skip


@cache
def kernel() -> Callable[..., None] | None:
    """The C function; None where it cannot be compiled, which is said once."""
    try:
        function = load(Path(__file__).with_name("copy.c"), ()).copy_slots
    except CompileError as error:
        in_torch("slots are copied", error)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [*[pointer] * 4, number, *[pointer] * 3, *[number] * 4, ctypes.c_int]
    function.restype = None
    return function


def _addresses(pools: list[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(pools))(*(pool.data_ptr() for pool in pools))


def _transfer(source: Tensor, target: Tensor, stretches: Stretches) -> None:
    """One tensor, in torch; a host that copies to or from a device does not wait for it."""
    for first, to, tokens in zip(*(x_C.tolist() for x_C in stretches), strict=True):
        if source.dim() == target.dim() == 3:
            target[to : to + tokens].copy_(source[first : first + tokens], non_blocking=True)
        else:
            put(target, torch.arange(to, to + tokens), take(source, torch.arange(first, first + tokens)))
