"""How many bytes the pool has, and what that means in tokens, blocks, page groups and requests."""

from __future__ import annotations

import os
from typing import Any

from kvlab.errors import UsageError
from kvlab.model.shape import Shape
from kvlab.strategy import Memory, Strategy


def pool_bytes(config: dict[str, Any], shape: Shape, device_bytes: int | None = None) -> int:
    """The pool of a run: what the configuration says, else 4 x max_len tokens, or a share of a device's memory.

    device_bytes: of the device's memory, None: it is asked. UsageError: more than there is, or nothing left.
    """
    token_bytes, here = shape.token_bytes(config["dtype"]), config["device"] == "cpu"
    memory, whose = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "machine"
    if not here:
        memory, whose = device_bytes or _device_bytes(config["device"]), "device"
    if config.get("pool_bytes") is not None:
        size = int(config["pool_bytes"])
    elif config.get("pool_blocks") is not None:
        size = int(config["pool_blocks"]) * int(config["block_size"]) * token_bytes
    elif not here:
        size = _left_over(config, shape, memory)
    else:
        size = 4 * int(config["max_len"]) * token_bytes
    if size > memory:
        raise UsageError(f"a pool of {size_text(size)}: allowed is at most this {whose}'s memory, {size_text(memory)}")
    if size < token_bytes:
        raise UsageError(f"pool_bytes={size:,} holds no token: one takes {token_bytes:,} bytes in this model")
    return size


def _device_bytes(device: str) -> int:
    from kvlab.engine.cuda.platform import memory_of  # and with it torch

    return memory_of(device)


def _left_over(config: dict[str, Any], shape: Shape, memory: int) -> int:
    from kvlab.engine.cuda.budget import pool_budget  # and with it torch

    return pool_budget(config, shape, memory)


def describe(strategy: Strategy, page_bytes: int) -> dict[str, Any]:
    """The capacity of a strategy over its memory; `line` is for people. page_bytes: one tensor's."""
    memory = strategy.memory
    tokens = memory.bytes // memory.token_bytes
    unit = _unit(strategy, page_bytes)
    line = (
        f"pool {unit} = {size_text(memory.bytes)}; longest request {strategy.longest:,}; "
        f"reserve-max would hold {tokens // memory.max_len:,}"
    )
    return {
        "line": line,
        "pool_bytes": memory.bytes,
        "pool_tokens": tokens,
        "token_bytes": memory.token_bytes,
        "longest": strategy.longest,
        "reserve_max_holds": tokens // memory.max_len,
        "page_group_tokens": page_group_tokens(memory) if strategy.virtual else None,
    }


def page_group_tokens(memory: Memory) -> float:
    """Tokens in one page group; need not be whole."""
    return memory.page_group_bytes / memory.token_bytes


def _unit(strategy: Strategy, page_bytes: int) -> str:
    memory, tokens = strategy.memory, strategy.memory.bytes // strategy.memory.token_bytes
    if strategy.virtual:
        groups = memory.bytes // memory.page_group_bytes
        each = f"{size_text(page_bytes)} a tensor, {page_group_tokens(memory):,.2f} tokens, "
        return f"{groups:,} page groups ({each}{size_text(memory.page_group_bytes)}) = {memory.tokens(groups):,} tokens"
    if strategy.block_size is not None:
        blocks = tokens // strategy.block_size
        return f"{blocks:,} blocks x {strategy.block_size} = {blocks * strategy.block_size:,} tokens"
    return f"{tokens:,} tokens"


def size_text(size: int) -> str:
    """720 MiB, 3.75 MiB, 64 KiB."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:,.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size:,} B"
