"""Memory as a server without virtual-memory tricks has it: one allocation, all of it there from the start."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor

from kvlab.kernels.pool import pool_shape
from kvlab.memory.backing import Backing
from kvlab.memory.host_vmm import PAGE_BYTES, VmmError
from kvlab.memory.store import Store
from kvlab.moves import Move, SwapIn, SwapOut


class DenseStore(Store):
    """2 * L pools, every byte committed by the constructor. VmmError: refused, and nothing is left of it.

    Elsewhere than on the host it is what torch allocates there. tile: slots in a head-major tile, a power of two;
    1: token-major. backing: the memory on the host, where it was begun before; closed with the store, or here.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str = "cpu",
        tile: int = 1,
        backing: Backing | None = None,
    ) -> None:
        shape, self._opened = (2, layers, *pool_shape(slots, kv_heads, head_dim, tile)), ExitStack()
        self._backing = backing
        if device == "cpu":
            keys, values = self._on_host(dtype, shape)
        else:
            keys, values = self._on_device(dtype, shape, device)
        self._layers = list(zip(keys, values, strict=True))

    def committed_bytes(self) -> int:
        return self._backing.pool.committed_bytes() if self._backing else self._nbytes

    def accounted_bytes(self) -> int:
        return self._nbytes

    def close(self) -> None:
        self._layers, self._copies, self._host, self._nbytes = [], None, None, 0
        self._opened.close()

    def _on_host(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        with ExitStack() as opened:
            self._backing = self._backing or Backing(nbytes)
            opened.callback(self._backing.close)
            reservation, self._nbytes = self._backing.wait(), self._backing.nbytes
            assert 0 <= self._nbytes - nbytes < PAGE_BYTES, f"{self._nbytes} bytes were begun for {nbytes}"
            self._opened = opened.pop_all()
        return reservation.tensor(dtype, shape)

    def _on_device(self, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> Tensor:
        try:
            pools = torch.empty(shape, dtype=dtype, device=device)
        except torch.OutOfMemoryError as error:
            raise VmmError("torch.empty", str(error).splitlines()[0]) from error
        self._nbytes = pools.nbytes
        self._opened.callback(torch.cuda.empty_cache)  # torch would keep the memory for itself
        return pools

    def _apply(self, move: Move) -> None:
        match move:
            case SwapOut() | SwapIn():
                self._swap(move)
            case _:
                raise AssertionError(f"{move}: a dense store has nothing to map")
