"""A torch tensor over addresses that are somebody else's, by a DLPack capsule: nothing is read or written.

The first page need not have memory. The tensor and its views together hold the addresses; `gone` is called when
the last of them is no more.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor

_CPU, _CUDA = 1, 2
_FLOAT, _BFLOAT = 2, 4
TYPES = {
    torch.float64: (_FLOAT, 64),
    torch.float32: (_FLOAT, 32),
    torch.float16: (_FLOAT, 16),
    torch.bfloat16: (_BFLOAT, 16),
}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Managed(ctypes.Structure):
    """DLManagedTensor, with the DLTensor that it begins with."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dimensions", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("key", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_live: dict[int, tuple[Any, Callable[[], None]]] = {}  # what the structures point to, and whom to tell
_keys = count(1)


def _deleted(address: int) -> None:
    _, gone = _live.pop(_Managed.from_address(address).key)
    gone()


_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_deleted)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def tensor_at(
    address: int, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device, gone: Callable[[], None]
) -> Tensor:
    """A contiguous tensor of that shape from `address` on."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    sizes = ctypes.c_int64 * len(shape)
    shape_C, strides_C, key = sizes(*shape), sizes(*strides), next(_keys)
    kind = _Device(_CUDA if device.type == "cuda" else _CPU, device.index or 0)
    deleter = ctypes.cast(_delete, ctypes.c_void_p)
    managed = _Managed(address, kind, len(shape), _Type(*TYPES[dtype], 1), shape_C, strides_C, 0, key, deleter)
    _live[key] = (managed, shape_C, strides_C), gone
    try:
        return torch.utils.dlpack.from_dlpack(_new_capsule(ctypes.addressof(managed), b"dltensor", None))
    except BaseException:  # the structure stays the capsule's, whom nobody asks to delete it
        del _live[key]
        raise
