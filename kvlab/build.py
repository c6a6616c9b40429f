"""From the nodes of a configuration to objects: what `_target_` names, called with the node's other keys."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kvlab.errors import UsageError
from kvlab.strategy import Memory, Strategy


def target(node: dict[str, Any]) -> type[Any]:
    """The class that a node's `_target_` names."""
    path = str(node["_target_"])
    module, _, name = path.rpartition(".")
    try:
        found: type[Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"_target_={path}: no such class ({error}); give it as package.module.Class") from None
    return found


def build(node: dict[str, Any], *first: Any) -> Any:
    """An object of the node's class; `first` are positional arguments that the engine gives."""
    arguments = {key: value for key, value in node.items() if key not in ("_target_", "name")}
    try:
        return target(node)(*first, **arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{node.get('name', node['_target_'])}: {error}") from error


def build_strategy(config: dict[str, Any], token_bytes: int, layers: int, pool_bytes: int) -> Strategy:
    """The strategy of a run over a pool of so many bytes."""
    max_len, engine = int(config["max_len"]), config["engine"]
    memory = Memory(
        bytes=pool_bytes,
        token_bytes=token_bytes,
        max_len=max_len,
        max_seqs=int(engine["max_seqs"]),
        chunk=int(engine["chunk"] or max_len),
        windows=(None,) * layers,
        page_group_bytes=int(config.get("page_group_bytes") or 0) * 2 * layers,
    )
    strategy: Strategy = build(config["strategy"], memory)
    return strategy
