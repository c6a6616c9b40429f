"""Where the stages run: the device, or what stands for it in a rehearsal, and how large everything is there."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kvlab.engine.cuda.platform import Platform, open_platform
from kvlab.model.llama import Llama
from kvlab.model.load import shape_of
from kvlab.model.weights import random_weights

MIB, GIB = 1 << 20, 1 << 30
TINY = {
    "layers": 2, "q_heads": 2, "kv_heads": 1, "head_dim": 64, "hidden": 32, "ffn": 64, "vocab": 97,
    "max_position": 256,
}  # fmt: skip
SEED = 0


class Scale(NamedTuple):
    """Sizes of the device's stages, or of their rehearsal."""

    model: dict[str, Any]  # over Llama-3-8B's
    dtype: str
    page: int  # bytes: the smallest page group
    pages: tuple[int, ...]
    max_len: int
    max_seqs: int
    pool_bytes: int
    requests: int
    prompts: tuple[int, int]
    outputs: tuple[int, int]


def scale(rehearsal: bool, total_bytes: int) -> Scale:
    """A device with less than 60 GiB gets fewer layers, so that weights take a third of it at most."""
    if rehearsal:
        return Scale(TINY, "float32", 4096, (4096, 8192, 16384), 32, 4, 64 * 4096, 3, (2, 6), (2, 4))
    layers = 32 if total_bytes > 60 * GIB else max(2, min(32, (total_bytes // 3 - 2 * GIB) // (440 * MIB)))
    pool = 8 * GIB * layers // 32
    pages = tuple(size * MIB for size in (2, 4, 8, 16, 32))
    return Scale({"layers": layers}, "bfloat16", 2 * MIB, pages, 4096, 64, pool, 64, (256, 1024), (64, 192))


def open_device(rehearsal: bool) -> Platform:
    if not rehearsal:
        return open_platform("cuda")
    from kvlab.engine.cuda.standin import Standin

    torch.set_num_threads(1)
    return Standin()


def model_of(sizes: Scale, platform: Platform) -> Llama:
    """Llama-3-8B's shape with random weights; their values change no time."""
    shape = shape_of(node(sizes))
    return Llama(shape, random_weights(shape, sizes.dtype, str(platform.device), SEED))


def node(sizes: Scale) -> dict[str, Any]:
    return {"name": "Llama-3-8B", "path": None, **sizes.model}


def config(sizes: Scale, strategy: dict[str, Any], attention: str = "kvlab", **changes: Any) -> dict[str, Any]:
    """A run's configuration, as the command line would make it."""
    targets = {"kvlab": "kvlab.engine.kernels.Kvlab", "sdpa": "kvlab.engine.attentions.sdpa.Sdpa"}
    (low, high), (least, most) = sizes.prompts, sizes.outputs
    engine = {"max_seqs": sizes.max_seqs, "chunk": None, "clock": "wall", "temperature": 0.0, "threads": None}
    base = {
        "strategy": strategy,
        "model": node(sizes),
        "workload": {
            "name": "uniform", "num_requests": sizes.requests, "prompt_len": {"min": low, "max": high},
            "output_len": {"min": least, "max": most},
        },
        "admission": {"_target_": "kvlab.engine.axes.PromptPlusOne"},
        "victim": {"_target_": "kvlab.engine.axes.Newest"},
        "preemption": {"_target_": "kvlab.engine.axes.Recompute"},
        "forecast": {"_target_": "kvlab.engine.axes.Limit"},
        "attention": {"name": attention, "_target_": targets[attention]},
        "engine": {**engine, "cuda_graphs": True},
        "seed": SEED, "max_len": sizes.max_len, "page_group_bytes": sizes.page, "pool_bytes": sizes.pool_bytes,
        "pool_blocks": None, "pool_fraction": None, "block_size": 16, "dtype": sizes.dtype, "device": "cuda",
        "executor": "real", "timing": True,
    }  # fmt: skip
    return {**base, **changes}


def contiguous() -> dict[str, Any]:
    return {"name": "contiguous", "_target_": "kvlab.strategies.contiguous.Contiguous"}


def paged(block_size: int) -> dict[str, Any]:
    return {"name": "paged", "_target_": "kvlab.strategies.paged.Paged", "block_size": block_size}


def vattention(layout: str = "per_layer", map_ahead: int = 0) -> dict[str, Any]:
    target = "kvlab.strategies.vattention.VAttention"
    return {"name": "vattention", "_target_": target, "page_layout": layout, "map_ahead": map_ahead}
