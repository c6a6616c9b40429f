"""Cost models of small and published shapes, from the files in conf/ with some keys changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import kvlab.conf
from kvlab.build import build_strategy
from kvlab.cost.model import CostModel, build_cost
from kvlab.cost.rank import token_bytes
from kvlab.model.load import shape_of
from kvlab.strategy import Strategy

CONF = Path(kvlab.conf.__path__[0])
STRATEGIES = {
    "paged": {"_target_": "kvlab.strategies.paged.Paged", "block_size": 16},
    "contiguous": {"_target_": "kvlab.strategies.contiguous.Contiguous"},
    "vattention": {"_target_": "kvlab.strategies.vattention.VAttention", "page_layout": "per_layer"},
    "sliced": {"_target_": "kvlab.strategies.vattention.VAttention", "page_layout": "sliced"},
}


class Built(NamedTuple):
    cost: CostModel
    strategy: Strategy
    config: dict[str, Any]


def node(group: str, name: str) -> dict[str, Any]:
    return {"name": name, **yaml.safe_load((CONF / group / f"{name}.yaml").read_text())}


def _build(model: str = "Llama-3-8B", strategy: str = "contiguous", **changes: Any) -> Built:
    """`changes`: keys of the configuration, `gpu__link_gb_s` for gpu.link_gb_s."""
    config: dict[str, Any] = {
        "gpu": node("gpu", changes.pop("gpu", "a100_80")),
        "vmm": node("vmm", changes.pop("vmm", "a100_paper")),
        "cost": node("cost", "published"),
        "attention": {"name": "kvlab"},
        "strategy": dict(STRATEGIES[strategy]),
        "dtype": "bfloat16", "kv_dtype": None, "tensor_parallel": 1,
        "max_len": 4096, "page_group_bytes": 2 << 20, "engine": {"max_seqs": 64, "chunk": None},
    }  # fmt: skip
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner = config
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    shape = shape_of({"name": model})
    size = token_bytes(shape, config["kv_dtype"] or config["dtype"], config["tensor_parallel"])
    built = build_strategy(config, size, shape.layers, 64 * 4096 * size)
    return Built(build_cost(config, shape, built), built, config)


@pytest.fixture(scope="session")
def build() -> Callable[..., Built]:
    return _build
