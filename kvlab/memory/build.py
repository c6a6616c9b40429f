"""The store that a strategy's moves ask for."""

from __future__ import annotations

import torch

from kvlab.memory.dense import DenseStore
from kvlab.memory.store import Store
from kvlab.memory.virtual import VirtualStore
from kvlab.strategy import Strategy


def build_store(strategy: Strategy, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> Store:
    """A store of the strategy's slots. UsageError: page groups that the system cannot map, or too little memory."""
    memory, slots = strategy.memory, strategy.pools[0].slots
    token_bytes = 2 * layers * kv_heads * head_dim * dtype.itemsize
    assert token_bytes == memory.token_bytes, f"a token has {token_bytes} bytes, not {memory.token_bytes}"
    if not strategy.virtual:
        return DenseStore(layers, slots, kv_heads, head_dim, dtype)
    page_bytes = memory.page_group_bytes // (2 if memory.sliced else 2 * layers)
    page_groups = memory.bytes // memory.page_group_bytes
    return VirtualStore(layers, slots, kv_heads, head_dim, dtype, page_bytes, page_groups, memory.sliced)
