"""A strategy's node of the configuration and its class: whether they fit, and which shared names they use."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from kvlab.build import NOT_ARGUMENTS
from kvlab.errors import UsageError
from kvlab.imports import class_at
from kvlab.strategy import Strategy

SHARED = ("block_size", "page_group_bytes", "eviction")  # top-level; some strategies use them, others have none


def node_of(target: str) -> dict[str, Any]:
    """The node for the class `package.module.Class`: its arguments, the shared names among them interpolated.

    What has no default is ???, which has to be given. Raises UsageError.
    """
    node: dict[str, Any] = {"_target_": target}
    for name, parameter in list(inspect.signature(strategy_class(target)).parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in SHARED:
            node[name] = "${" + name + "}"
        elif parameter.default is parameter.empty:
            node[name] = "???"
        elif parameter.default is None or isinstance(parameter.default, bool | int | float | str):
            node[name] = parameter.default
    return node


def strategy_class(target: str) -> type[Strategy]:
    """The class `package.module.Class`. Raises UsageError if there is none, or if it is no whole strategy."""
    found = class_at(target, "strategy._target_")
    if not issubclass(found, Strategy):
        raise UsageError(f"strategy._target_={target}: allowed is a subclass of kvlab.strategy.Strategy")
    if missing := sorted(found.__abstractmethods__):
        raise UsageError(f"strategy._target_={target}: it lacks {', '.join(missing)}")
    return found


def knobs(node: Mapping[str, Any], cls: type[Strategy]) -> tuple[str, ...]:
    """The shared names that a strategy uses: those its node interpolates, and what virtual memory needs."""
    used = set(re.findall(r"\$\{(\w+)\}", " ".join(str(value) for value in node.values())))
    if cls.virtual:
        used.add("page_group_bytes")
    return tuple(name for name in SHARED if name in used)


def check_arguments(cls: type[Strategy], node: Mapping[str, Any]) -> None:
    """Raise UsageError where the constructor does not take the memory and what the node holds."""
    signature = inspect.signature(cls)
    taken = [*list(signature.parameters)[1:], *(["page_layout"] if cls.virtual else [])]
    free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for name in node:
        if name not in ("name", "_target_", *taken) and not free:
            allowed = ", ".join(taken) or "nothing of its own"
            raise UsageError(f"strategy.{name}: no such argument; {cls.__name__} takes {allowed}")
    arguments = [name for name in node if name not in NOT_ARGUMENTS]
    try:
        signature.bind(None, **dict.fromkeys(arguments))
    except TypeError as error:
        given = ", ".join(["memory", *arguments])
        raise UsageError(f"{cls.__name__}{signature} cannot be called with ({given}): {error}") from error
