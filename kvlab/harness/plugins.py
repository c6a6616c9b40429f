"""Strategies that are installed: kvlab's own and those that other packages bring.

A package brings strategies in one of two ways: an entry point in group `kvlab.conf` that names a package of
YAML files (strategy/NAME.yaml and any other group), or one in group `kvlab.strategies` that names a class.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any

from kvlab.build import class_at
from kvlab.errors import UsageError
from kvlab.strategy import Strategy

SHARED = ("block_size", "page_group_bytes", "eviction")  # top-level names that some strategies use and others do not have


@dataclass(frozen=True)
class Installed:
    """One strategy: its node of the configuration, not resolved, and the package that brought it."""

    name: str
    node: Mapping[str, Any]
    package: str


def conf_packages() -> list[tuple[str, str]]:
    """(distribution, module) of the packages of YAML files that plugins bring."""
    return [(_distribution(point), point.value) for point in entry_points(group="kvlab.conf")]


def class_nodes() -> list[Installed]:
    """A node for each class among the entry points: its defaults, with the shared names interpolated."""
    return [
        Installed(point.name, node_of(point.value), _distribution(point))
        for point in entry_points(group="kvlab.strategies")
    ]


def installed() -> list[Installed]:
    """Every strategy that `strategy=NAME` accepts, sorted by name within its package, kvlab's first."""
    found = [item for source in [("kvlab", "kvlab.conf"), *conf_packages()] for item in _yaml_nodes(*source)]
    return found + class_nodes()


def node_of(target: str) -> dict[str, Any]:
    """The node for a class `module:Class`; its name alone where it cannot be imported, so that others still can."""
    node: dict[str, Any] = {"_target_": target.replace(":", ".")}
    try:
        cls = strategy_class(node["_target_"])
    except UsageError:
        return node
    for name, parameter in list(inspect.signature(cls).parameters.items())[1:]:
        if name in SHARED:
            node[name] = "${" + name + "}"
        elif parameter.default is None or isinstance(parameter.default, bool | int | float | str):
            node[name] = parameter.default
    return node


def strategy_class(target: str) -> type[Strategy]:
    """The class `package.module.Class`. Raises UsageError if there is none, or if it is no strategy."""
    found = class_at(target, "strategy._target_")
    if not issubclass(found, Strategy):
        raise UsageError(f"strategy._target_={target}: allowed is a subclass of kvlab.strategy.Strategy")
    return found


def knobs(node: Mapping[str, Any], cls: type[Strategy]) -> tuple[str, ...]:
    """The shared names that a strategy uses: those its node interpolates, and what virtual memory needs."""
    used = set(re.findall(r"\$\{(\w+)\}", " ".join(str(value) for value in node.values())))
    if cls.virtual:
        used.add("page_group_bytes")
    return tuple(name for name in SHARED if name in used)


def check_arguments(cls: type[Strategy], node: Mapping[str, Any]) -> None:
    """Raise UsageError for an argument that the constructor does not take."""
    taken = list(inspect.signature(cls).parameters)[1:]
    for name in node:
        if name not in ("name", "_target_", *taken):
            allowed = ", ".join(taken) or "nothing of its own"
            raise UsageError(f"strategy.{name}: no such argument; {cls.__name__} takes {allowed}")


def _yaml_nodes(package: str, module: str) -> list[Installed]:
    import yaml

    try:
        folder = files(module) / "strategy"
    except ImportError as error:
        raise UsageError(
            f"{package}: its entry point kvlab.conf names {module}, which is not there: {error}"
        ) from error
    if not folder.is_dir():
        return []
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".yaml"))
    nodes = [(name, yaml.safe_load((folder / name).read_text()) or {}) for name in names]
    return [Installed(name.removesuffix(".yaml"), node, package) for name, node in nodes]


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value.partition(":")[0]
