"""From the nodes of a configuration to objects: what `_target_` names, called with the node's other keys."""

from __future__ import annotations

import os
from typing import Any

from kvlab.errors import UsageError
from kvlab.imports import class_at
from kvlab.strategy import Memory, Strategy

NOT_ARGUMENTS = ("_target_", "name", "page_layout")
PAGE_LAYOUTS = ("per_layer", "sliced")  # page_layout of a virtual strategy: what the pages of one reservation hold

# The scheduling axes, and what each is asked.
AXES = {"admission": "terms", "victim": "choose", "preemption": "how", "forecast": "expect"}
OF_THE_MODEL = ("parameters", "token_bytes")


def build(node: dict[str, Any], *first: Any, key: str = "_target_") -> Any:
    """An object of the node's class; `first` are positional arguments that the engine gives.

    An argument that names a class itself (`eviction`) is built first. UsageError: there is no such class (`key` is
    where it was named), or it does not take what the node holds.
    """
    inner = {name: build(value) for name, value in node.items() if isinstance(value, dict) and "_target_" in value}
    arguments = {name: inner.get(name, value) for name, value in node.items() if name not in NOT_ARGUMENTS}
    try:
        return class_at(str(node["_target_"]), key)(*first, **arguments)
    except UsageError:  # has said what was given
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"{node.get('name', node['_target_'])}: {error}") from error


def build_axis(config: dict[str, Any], name: str) -> Any:
    """The object that decides a scheduling axis. UsageError: none is given, or it cannot decide that.

    Arguments that its node leaves null and that are called `parameters` or `token_bytes` are the model's.
    """
    node = config[name]
    if "_target_" not in node:
        raise UsageError(f"{name}._target_: it is needed and cannot be left out")
    unknown = [key for key in OF_THE_MODEL if key in node and node[key] is None]
    known = {key: value for key, value in _of_the_model(config).items() if key in unknown} if unknown else {}
    built = build({**node, **known}, key=f"{name}._target_")
    if not hasattr(built, AXES[name]):
        raise UsageError(f"{name}._target_={node['_target_']}: allowed is a class with a method {AXES[name]}")
    return built


def _of_the_model(config: dict[str, Any]) -> dict[str, int]:
    """What an axis may want to know of the model, on one GPU: weights of its products, bytes of a token."""
    from kvlab.cost.rank import Rank, token_bytes
    from kvlab.model.load import shape_of

    shape, ranks = shape_of(config["model"]), int(config.get("tensor_parallel") or 1)
    rank = Rank.of(shape, ranks)
    each = token_bytes(shape, str(config.get("kv_dtype") or config["dtype"]), ranks)
    return {"parameters": rank.body_weights, "token_bytes": each}


def host_bytes(config: dict[str, Any], token_bytes: int) -> int:
    """What swapped sequences may take on the host. UsageError: no such number, no token's worth, more than there is."""
    given = config.get("host_bytes") or 0
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise UsageError(f"host_bytes={given}: allowed is a whole number of bytes, 0 or more")
    if 0 < given < token_bytes:
        raise UsageError(f"host_bytes={given:,} holds no token: one takes {token_bytes:,} bytes in this model")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if given > memory and config.get("executor") != "simulated":
        raise UsageError(f"host_bytes={given:,}: allowed is at most this machine's memory, {memory:,}")
    return given


def tile(config: dict[str, Any]) -> int:
    """Slots in a tile of the layout; 1: token-major. UsageError: no power of two, or not to be had on a GPU."""
    node = config.get("layout") or {}
    given = node.get("tile", 1)
    if isinstance(given, bool) or not isinstance(given, int) or given < 1 or given & (given - 1):
        raise UsageError(f"layout.tile={given}: allowed is a power of two: slots, 1 for token_major")
    if given > 1 and config.get("device", "cpu") != "cpu":
        raise UsageError(f"layout={node.get('name')} with device={config['device']}: allowed there is token_major")
    return given


def build_strategy(config: dict[str, Any], token_bytes: int, layers: int, pool_bytes: int) -> Strategy:
    """The strategy of a run over a pool of so many bytes."""
    max_len, engine = int(config["max_len"]), config["engine"]
    layout = config["strategy"].get("page_layout", "per_layer")
    if layout not in PAGE_LAYOUTS:
        raise UsageError(f"strategy.page_layout={layout}: allowed is {', '.join(PAGE_LAYOUTS)}")
    sliced = layout == "sliced"
    memory = Memory(
        bytes=pool_bytes,
        token_bytes=token_bytes,
        max_len=max_len,
        max_seqs=int(engine["max_seqs"]),
        chunk=min(int(engine["chunk"] or max_len), max_len),
        windows=(None,) * layers,
        page_group_bytes=int(config.get("page_group_bytes") or 0) * (2 if sliced else 2 * layers),
        sliced=sliced,
        host_bytes=host_bytes(config, token_bytes),
        tile=tile(config),
    )
    strategy: Strategy = build(config["strategy"], memory, key="strategy._target_")
    if len(strategy.groups) != 1 or len(strategy.pools) != 1 or strategy.groups[0].window:
        given = config["strategy"].get("name", config["strategy"]["_target_"])
        raise UsageError(
            f"strategy={given}: it has {strategy.groups}; allowed in a run is one group of all layers, in one pool, "
            "whose queries read all tokens (window=None)"
        )
    return strategy
