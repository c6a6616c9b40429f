"""The contract's random lives of vattention, each move also carried out by a real store: the bytes must agree.

Every token's value is written into the store's tensors where the table says, and read back from there whenever the
contract looks. Launches are announced to the device, so that memory taken from under one kills the run.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np
import pytest
import torch

from kvlab.memory.cuda.vmm import CudaVmm
from kvlab.memory.virtual import VirtualStore
from kvlab.memory.vmm import HOST
from kvlab.moves import Copy
from kvlab.strategies.vattention import VAttention
from kvlab.testing.life import Life
from kvlab.testing.memories import SETTINGS
from kvlab.testing.shadow import Shadow, Shadows
from kvlab.testing.trial import Trial

PAGE, ITEM, STEPS = 4096, 8, 60


def scaled(memory, layers, sliced):
    """The same memory with more bytes to everything, so that a page group is whole pages in each reservation."""
    places = 2 if sliced else 2 * layers
    unit = places * PAGE // gcd(memory.page_group_bytes, places * PAGE)
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


class StoreShadow(Shadow):
    """A shadow whose tokens are written to a store as well, and looked for there."""

    def __init__(self, strategy, store):
        super().__init__(strategy)
        self.tensors = [kv_SHD for layer in range(len(strategy.memory.windows)) for kv_SHD in store.layer(layer)]

    def write(self, slot_N, value_N):
        super().write(slot_N, value_N)
        slot, value = torch.from_numpy(slot_N), torch.from_numpy(value_N.astype(np.int64))
        for kv_SHD in self.tensors:
            kv_SHD.view(torch.int64)[slot] = value[:, None, None]

    def holds(self, slot_N, value_N):
        there_N = super().holds(slot_N, value_N)
        slot, value = torch.from_numpy(slot_N[there_N]), torch.from_numpy(value_N[there_N].astype(np.int64))
        for kv_SHD in self.tensors:
            same = kv_SHD.view(torch.int64)[slot] == value[:, None, None]
            assert same.all(), "the store holds something else than it should"
        return there_N


class Carried(Shadows):
    """Moves are carried out by the store too, beside a launch where they may be."""

    def __init__(self, strategy, store, device):
        super().__init__(strategy)
        self.store, self.device, self.pools = store, device, [StoreShadow(strategy, store)]
        self.running = []  # launches
        self.of = self.pools * len(strategy.groups)

    def apply(self, moves):
        super().apply(moves)
        if any(isinstance(move, Copy) for move in moves):
            self.store.apply(moves)
        else:
            self.store.apply_beside(moves)
            self.store.join()
        assert self.store.committed_bytes() == self.store.accounted_bytes()
        assert sorted(self.store.ledger.physical) == np.flatnonzero(self.pools[0].under >= 0).tolist()


class OnDevice(Trial):
    """A launch runs on the device too, and reads what its sequences have, until it is complete."""

    def issue(self, plan):
        super().issue(plan)
        if not isinstance(self.shadow, Carried):  # a copy, to try something out
            return
        store, device = self.shadow.store, self.shadow.device
        for slot_T in self.flight_slots:
            groups, page = self.shadow.pools[0].groups(slot_T), store._page_bytes
            ranges = [(place.base + group * page, page) for place in store._reservations for group in groups]
            self.shadow.running.append(device.launch(ranges))

    def complete(self):
        while isinstance(self.shadow, Carried) and self.shadow.running:
            self.shadow.device.finish(self.shadow.running.pop())
        return super().complete()


def live(strategy, layers, seed, device, vmm):
    memory = strategy.memory
    page = memory.page_group_bytes // (2 if memory.sliced else 2 * layers)
    slots, dim = strategy.pools[0].slots, memory.token_bytes // (2 * layers * ITEM)
    groups = memory.bytes // memory.page_group_bytes
    store = VirtualStore(layers, slots, 1, dim, torch.float64, page, groups, memory.sliced, vmm)
    try:
        life = Life(strategy, seed, 0.02)
        life.trial.shadow = Carried(strategy, store, device)
        life.trial.__class__ = OnDevice if device else Trial
        return life.live(STEPS)
    finally:
        store.close()


CASES = [(setting, layers, sliced) for setting in SETTINGS for layers, sliced in ((1, False), (2, True))]
QUICK = {("small", False), ("small", True)}
PARAMETERS = [
    pytest.param(
        *case,
        id=f"{case[0].name}-{case[1]}{'-sliced' if case[2] else ''}",
        marks=[] if (case[0].name, case[2]) in QUICK else pytest.mark.slow,
    )
    for case in CASES
]


@pytest.mark.parametrize(("setting", "layers", "sliced"), PARAMETERS)
@pytest.mark.parametrize("kind", ["device", pytest.param("host", marks=pytest.mark.slow)])
def test_vattention_lives_over_a_real_store(setting, layers, sliced, kind, new_device, nothing_lives):
    seen, memory = {}, scaled(setting.memory, layers, sliced)
    for seed, map_ahead in ((0, 0), (1, 2)):
        device = new_device(2 * memory.bytes // PAGE * PAGE) if kind == "device" else None
        vmm = CudaVmm(device.open()) if device else HOST
        done = live(VAttention(memory, map_ahead), layers, seed, device, vmm)
        seen = {name: done[name] + seen.get(name, 0) for name in done}
        if device:
            assert not device.dead
            nothing_lives(device)
    assert seen["map"] > 20
    assert seen["written tokens"] > 100
