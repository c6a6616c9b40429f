"""The contract's random lives of vattention, each move carried out by the device's driver, each token looked for there.

A launch is a kernel that reads what its sequences have: memory that is taken from under it kills the device.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
import torch
from common import open_device
from numpy.typing import NDArray

from kvlab.engine.cuda.platform import Platform
from kvlab.memory.build import open_vmm
from kvlab.memory.cuda.vmm import CudaVmm
from kvlab.memory.virtual import VirtualStore
from kvlab.moves import Copy, Move
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Memory
from kvlab.testing.life import Life
from kvlab.testing.memories import SETTINGS
from kvlab.testing.shadow import Shadow, Shadows
from kvlab.testing.trial import Trial

ITEM, STEPS = 8, 60  # bytes of a float64


def run(report: Any) -> None:
    platform = open_device(report.rehearsal)
    settings, steps = (SETTINGS[:1], 15) if report.rehearsal else (SETTINGS[:5], STEPS)
    for setting in settings:
        for layers, sliced in ((1, False), (2, True)):
            for seed in range(1 if report.rehearsal else 2):
                memory = scaled(setting.memory, layers, sliced, _granularity(platform))
                seen = live(VAttention(memory, seed % 2), layers, seed, steps, platform)
                report.add(setting=setting.name, layers=layers, sliced=sliced, seed=seed, steps=steps,
                           maps=seen["map"], written_tokens=seen["written tokens"])  # fmt: skip


def scaled(memory: Memory, layers: int, sliced: bool, page: int) -> Memory:
    """The same memory with more bytes to everything, so that a page group is whole pages in each reservation."""
    places = 2 if sliced else 2 * layers
    unit = places * page // gcd(memory.page_group_bytes, places * page)
    token = 2 * layers * ITEM
    unit *= token // gcd(memory.token_bytes * unit, token)
    return replace(
        memory,
        bytes=memory.bytes * unit,
        token_bytes=memory.token_bytes * unit,
        page_group_bytes=memory.page_group_bytes * unit,
        windows=(None,) * layers,
        sliced=sliced,
    )


class OnDevice(Shadow):
    """A shadow whose tokens are written to a store as well, and looked for there."""

    def __init__(self, strategy: VAttention, store: VirtualStore) -> None:
        super().__init__(strategy)
        self.tensors = [kv_SHD for layer in range(len(strategy.memory.windows)) for kv_SHD in store.layer(layer)]
        self.device = self.tensors[0].device

    def write(self, slot_N: NDArray[np.int64], value_N: NDArray[Any]) -> None:
        super().write(slot_N, value_N)
        slot, value = self._there(slot_N), self._there(value_N)
        for kv_SHD in self.tensors:
            kv_SHD.view(torch.int64)[slot] = value[:, None, None]

    def holds(self, slot_N: NDArray[np.int64], value_N: NDArray[Any]) -> NDArray[np.bool_]:
        there_N = super().holds(slot_N, value_N)
        slot, value = self._there(slot_N[there_N]), self._there(value_N[there_N])
        for kv_SHD in self.tensors:
            same = kv_SHD.view(torch.int64)[slot] == value[:, None, None]
            assert same.all(), "the device holds something else than it should"
        return there_N

    def read(self, slot_N: NDArray[np.int64]) -> None:
        """A kernel that takes a while to begin."""
        if self.device.type == "cuda":
            torch.cuda._sleep(1_000_000)
        for kv_SHD in self.tensors:
            kv_SHD.view(torch.int64)[self._there(slot_N), 0, 0].sum()

    def _there(self, values: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.device)


class Carried(Shadows):
    """Moves are carried out by the store too, beside a launch where they may be."""

    def __init__(self, strategy: VAttention, store: VirtualStore) -> None:
        super().__init__(strategy)
        self.store, self.pools = store, [OnDevice(strategy, store)]
        self.of = self.pools * len(strategy.groups)

    def apply(self, moves: list[Move]) -> None:
        super().apply(moves)
        if any(isinstance(move, Copy) for move in moves):
            self.store.apply(moves)
        else:
            self.store.apply_beside(moves)
            self.store.join()
        assert self.store.committed_bytes() == self.store.accounted_bytes()


class Launching(Trial):
    """Launches run on the device, and end when they are complete."""

    def issue(self, plan: Any) -> None:
        super().issue(plan)
        if isinstance(self.shadow, Carried):  # else a copy, to try something out
            for slot_N in self.flight_slots:
                self.shadow.pools[0].read(slot_N)

    def complete(self) -> Any:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return super().complete()


def live(strategy: VAttention, layers: int, seed: int, steps: int, platform: Platform) -> Any:
    memory = strategy.memory
    page = memory.page_group_bytes // (2 if memory.sliced else 2 * layers)
    dim, groups = memory.token_bytes // (2 * layers * ITEM), memory.bytes // memory.page_group_bytes
    store = VirtualStore(
        layers, strategy.pools[0].slots, 1, dim, torch.float64, page, groups, memory.sliced, _vmm(platform, memory)
    )
    try:
        life = Life(strategy, seed, 0.02)
        life.trial.shadow = Carried(strategy, store)
        life.trial.__class__ = Launching
        return life.live(steps)
    finally:
        store.close()


def _granularity(platform: Platform) -> int:
    return 4096 if platform.device.type == "cpu" else 2 << 20


def _vmm(platform: Platform, memory: Memory) -> CudaVmm:
    if platform.device.type == "cuda":
        return open_vmm(str(platform.device))
    from kvlab.memory.cuda.emulator import Emulator

    return CudaVmm(Emulator(2 * memory.bytes // 4096 * 4096, 4096))
