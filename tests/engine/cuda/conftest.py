"""The engine on a CUDA device where there is one, else on the stand-in: the same tests run over both.

On the stand-in kernels are interpreted, which is slow: models and requests are tiny.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a module with kernels is imported

from kvlab.build import build_strategy
from kvlab.engine.cuda.platform import open_platform
from kvlab.engine.real import real_engine
from kvlab.model.load import load
from kvlab.request import Request

PAGE = 4096 if not torch.cuda.is_available() else 2 << 20
TINY = {
    "name": "tiny", "path": None, "seed": 0, "layers": 2, "q_heads": 2, "kv_heads": 1, "head_dim": 64, "hidden": 32,
    "ffn": 64, "vocab": 97, "rope_theta": 10000.0, "rms_eps": 1e-5, "tied": False, "max_position": 8192,
}  # fmt: skip
TOKEN_BYTES = 2 * 2 * 64 * 4
STRATEGIES = {
    "contiguous": {"_target_": "kvlab.strategies.contiguous.Contiguous"},
    "paged": {"_target_": "kvlab.strategies.paged.Paged", "block_size": 4},
    "vattention": {"_target_": "kvlab.strategies.vattention.VAttention"},
    "vattention_ahead": {"_target_": "kvlab.strategies.vattention.VAttention", "map_ahead": 1},
    "vattention_sliced": {"_target_": "kvlab.strategies.vattention.VAttention", "page_layout": "sliced"},
    "growing": {"_target_": "kvlab.strategies.growing.Growing", "step": 4},
    "radix": {"_target_": "kvlab.strategies.radix.Radix", "block_size": 4, "partial": "copy"},
    "token_pool": {"_target_": "kvlab.strategies.token_pool.TokenPool"},
}


def _config(strategy: str, pool_tokens: int | None = None, **changes: object) -> dict:
    """`pool_tokens`: None is room for all."""
    engine = {
        "max_seqs": 4, "chunk": None, "clock": "steps", "temperature": 0.0, "threads": 1, "cuda_graphs": True,
    }  # fmt: skip
    base = {
        "strategy": {"name": strategy, **STRATEGIES[strategy]},
        "model": TINY,
        "workload": {},
        "admission": {"_target_": "kvlab.engine.axes.PromptPlusOne"},
        "victim": {"_target_": "kvlab.engine.axes.Newest"},
        "preemption": {"_target_": "kvlab.engine.axes.Recompute"},
        "attention": {"_target_": "kvlab.engine.kernels.Kvlab"},
        "forecast": {"_target_": "kvlab.engine.axes.Limit"},
        "seed": 0, "max_len": 32, "page_group_bytes": PAGE, "pool_bytes": 32 * PAGE, "pool_blocks": None,
        "pool_fraction": None, "block_size": 4, "dtype": "float32", "device": "cuda", "executor": "real",
        "timing": False,
    }  # fmt: skip
    if pool_tokens:
        base["pool_bytes"] = pool_tokens * TOKEN_BYTES
    engine.update({key: changes.pop(key) for key in list(changes) if key in engine})
    return {**base, "engine": engine, **changes}


@pytest.fixture
def config():
    """config(strategy, pool_tokens=None, **changes): of a run; engine's keys go there."""
    return _config


@pytest.fixture
def new_platform():
    """A device that nobody has used."""

    def make():
        if torch.cuda.is_available():
            return open_platform("cuda")
        from kvlab.engine.cuda.standin import Standin

        return Standin()

    return make


@pytest.fixture
def serve(new_platform):
    """serve(config, requests, on_cpu=False): the engine after its run; `told` is what the executor says of itself."""

    def run(cfg, requests, on_cpu=False):
        platform = None if on_cpu else new_platform()
        cfg = {**cfg, "device": "cpu"} if on_cpu else cfg
        model = load(cfg["model"], cfg["dtype"], "cpu" if on_cpu else str(platform.device)).model
        strategy = build_strategy(cfg, TOKEN_BYTES, 2, cfg["pool_bytes"])
        with real_engine(cfg, model, strategy, requests, platform=platform) as engine:
            engine.platform, engine.strategy = platform, strategy
            engine.run()
            engine.told = engine.executor.describe()
        return engine

    return run


@pytest.fixture
def work():
    """work(count, ...): requests of 2 to `longest` output tokens; `alike` leading ones are the same in all of them."""

    def make(count, seed=0, longest=13, alike=0, temperature=0.0):
        rng = np.random.default_rng(seed)
        shared, made = rng.integers(0, 97, alike), []
        for number in range(count):
            prompt = np.append(shared, rng.integers(0, 97, int(rng.integers(1, 10)))).astype(np.int32)
            output = int(rng.integers(2, longest + 1))
            limit = min(32, len(prompt) + output)
            made.append(Request(number, len(prompt), limit - len(prompt), 32, 0.0, prompt, temperature, number))
        return made

    return make


@pytest.fixture(autouse=True)
def _one_thread(threads):
    """Of torch, unless a test says otherwise."""
