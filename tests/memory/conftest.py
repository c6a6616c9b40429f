"""What tests of memory share: runs that preempt, and how code ends that may touch memory which is not there."""

from __future__ import annotations

import faulthandler
import os
import resource
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kvlab.memory.dense import DenseStore
from kvlab.memory.host_vmm import PAGE_BYTES
from kvlab.memory.store import Store
from kvlab.memory.virtual import VirtualStore
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Arrival, Grant


class Forking(VAttention):
    """Each request is born as the child of a fork, so that runs alias page groups, copy and give aliases back."""

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        parent = Arrival(-1 - arrival.seq, arrival.length, arrival.length, arrival.limit, arrival.expected)
        if len(self.table.spare) < 2 or super().admit(parent, arrival.length, leave) is None:
            return None
        grant = self.fork(parent.seq, arrival)
        self.release(parent.seq)
        return grant and Grant(0, grant.room)


LAYERS, HEADS, DIM = 3, 2, 16
STRATEGIES = {
    "paged": {"_target_": "kvlab.strategies.paged.Paged", "block_size": 16},
    "virtual": {"_target_": "kvlab.strategies.vattention.VAttention"},
    "sliced": {"_target_": "kvlab.strategies.vattention.VAttention", "page_layout": "sliced"},
    "ahead": {"_target_": "kvlab.strategies.vattention.VAttention", "map_ahead": 1},
    "forking": {"_target_": f"{__name__}.Forking"},
}
TINY = {
    "name": "tiny", "path": None, "seed": 0, "layers": 2, "q_heads": 2, "kv_heads": 1, "head_dim": 64, "hidden": 32,
    "ffn": 64, "vocab": 97, "rope_theta": 10000.0, "rms_eps": 1e-5, "tied": False, "max_position": 8192,
}  # fmt: skip


def _config(name: str, requests: int = 4, output: int = 10) -> dict[str, Any]:
    return {
        "strategy": {"name": name, **STRATEGIES[name]},
        "model": TINY,
        "workload": {"name": "fixed", "num_requests": requests, "prompt_len": 12, "output_len": output},
        "admission": {"_target_": "kvlab.engine.axes.PromptPlusOne"},
        "victim": {"_target_": "kvlab.engine.axes.Newest"},
        "preemption": {"_target_": "kvlab.engine.axes.Recompute"},
        "attention": {"_target_": "kvlab.engine.kernels.Kvlab"},
        "forecast": {"_target_": "kvlab.engine.axes.Limit"},
        "engine": {"max_seqs": 8, "chunk": None, "clock": "steps", "temperature": 0.0, "threads": 1},
        "seed": 0, "max_len": 32, "page_group_bytes": 4096, "pool_bytes": 7 * 4 * 4096, "pool_blocks": None,
        "block_size": 16, "dtype": "float64", "device": "cpu", "executor": "real", "timing": False,
    }  # fmt: skip


@pytest.fixture(scope="session")
def config_of() -> Callable[..., dict[str, Any]]:
    """config_of(name, requests, output): a run that preempts, in pages of 4,096 bytes, under one of STRATEGIES."""
    return _config


def _ending(code: Callable[[], object]) -> int:
    """0, or the signal that killed a fork of this process which ran `code`; 1: it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads; it runs on one
        child = os.fork()
    if not child:
        status = 1
        try:
            torch.set_num_threads(1)
            faulthandler.disable()  # the death is wanted: no dump, no core
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


@pytest.fixture
def ending() -> Callable[[Callable[[], object]], int]:
    return _ending


@pytest.fixture(autouse=True)
def _one_thread(threads: Callable[[int], None]) -> None:
    """Of torch, unless a test says otherwise."""


@pytest.fixture
def dense() -> Iterator[DenseStore]:
    store = DenseStore(LAYERS, 100, HEADS, DIM, torch.float32)
    yield store
    store.close()


@pytest.fixture
def virtual() -> Iterator[VirtualStore]:
    store = VirtualStore(LAYERS, 6 * PAGE_BYTES // (HEADS * DIM * 4), HEADS, DIM, torch.float32, PAGE_BYTES, 4)
    yield store
    store.close()


def _fill(store: Store, start: int, stop: int, value: float) -> None:
    """Keys of layer l get value + l, its values value + l + 0.5."""
    for layer in range(LAYERS):
        k_SHD, v_SHD = store.layer(layer)
        k_SHD[start:stop] = value + layer
        v_SHD[start:stop] = value + layer + 0.5


def _holds(store: Store, start: int, stop: int, value: float) -> bool:
    return all(
        bool((k_SHD[start:stop] == value + layer).all() and (v_SHD[start:stop] == value + layer + 0.5).all())
        for layer, (k_SHD, v_SHD) in ((layer, store.layer(layer)) for layer in range(LAYERS))
    )


@pytest.fixture(scope="session")
def fill() -> Callable[[Store, int, int, float], None]:
    """fill(store, start, stop, value): those slots in every layer."""
    return _fill


@pytest.fixture(scope="session")
def holds() -> Callable[[Store, int, int, float], bool]:
    """holds(store, start, stop, value): whether those slots were filled so, and are still."""
    return _holds
