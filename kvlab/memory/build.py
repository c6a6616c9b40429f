"""The store that a strategy's moves ask for, on the device that a run is on."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from kvlab.errors import UsageError
from kvlab.memory.backing import Backing
from kvlab.memory.dense import DenseStore
from kvlab.memory.store import Store
from kvlab.memory.virtual import VirtualStore
from kvlab.memory.vmm import HOST, Vmm
from kvlab.strategy import Strategy


def build_store(
    strategy: Strategy,
    layers: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: str = "cpu",
    vmm: Vmm | None = None,
    backing: Backing | None = None,
) -> Store:
    """A store of the strategy's slots. UsageError: page groups that the system cannot map, or too little memory.

    vmm: what maps memory on demand, where it is not the device's own. backing: from `begin_backing`.
    """
    memory, slots = strategy.memory, strategy.pools[0].slots
    token_bytes = 2 * layers * kv_heads * head_dim * dtype.itemsize
    assert token_bytes == memory.token_bytes, f"a token has {token_bytes} bytes, not {memory.token_bytes}"
    store: Store
    if strategy.virtual:
        page_bytes = memory.page_group_bytes // (2 if memory.sliced else 2 * layers)
        page_groups = memory.bytes // memory.page_group_bytes
        opened = vmm or open_vmm(device)
        store = VirtualStore(
            layers, slots, kv_heads, head_dim, dtype, page_bytes, page_groups, memory.sliced, opened, memory.tile
        )
    else:
        store = DenseStore(layers, slots, kv_heads, head_dim, dtype, device, memory.tile, backing)
    if memory.host_bytes:
        with ExitStack() as undo:
            undo.callback(store.close)
            store.open_host(memory.host_bytes // token_bytes)
            undo.pop_all()
    return store


def open_vmm(device: str, ahead: bool = False) -> Vmm:
    """What maps memory on `device`: cpu, cuda or cuda:N. `ahead`: a CUDA pool's handles are created with it."""
    kind, _, number = device.partition(":")
    if device == "cpu":
        return HOST
    if kind != "cuda" or not (number or "0").isdecimal():
        raise UsageError(f"device={device}: allowed is cpu, cuda or cuda:N")
    from kvlab.memory.cuda.bindings import CudaDriver  # not every machine has a driver
    from kvlab.memory.cuda.vmm import CudaVmm

    return CudaVmm(CudaDriver(int(number or 0)), ahead)
