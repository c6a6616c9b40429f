"""What is installed: kvlab's own strategies, and everything that other packages bring.

A package has an entry point in the group `kvlab.conf`, which names a package of YAML files (strategy/NAME.yaml,
workload/NAME.yaml, ...), or one in `kvlab.strategies`, which names a class. docs/plugins.md tells the whole story.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from kvlab.build import AXES
from kvlab.errors import UsageError
from kvlab.harness.nodes import check_arguments, node_of, strategy_class
from kvlab.imports import object_at, reason

OURS = "kvlab"
NEEDS_CLASS = ("strategy", "eviction", "attention", *AXES)  # groups whose every node names one


@dataclass(frozen=True)
class Installed:
    """One name of one group: its node of the configuration, not resolved, and the package that brought it."""

    name: str
    node: Mapping[str, Any]
    package: str
    group: str = "strategy"  # conf: a package of YAML files that cannot be read
    is_class: bool = False  # known by its class alone, without a file
    problem: str = ""  # why it cannot be used
    what: str = ""  # the first line of its file, where that is a comment

    def __str__(self) -> str:
        asked = self.name if self.group in ("strategy", "conf") else f"{self.group}={self.name}"
        return f"{asked} (from {self.package})"


def installed() -> list[Installed]:
    """The strategies that can be used: kvlab's, then those of other packages."""
    return [item for item in everything() if item.group == "strategy" and not problem(item)]


def everything() -> list[Installed]:
    """kvlab's strategies, then whatever other packages bring, each sorted by name; some may have a problem."""
    ours = [_file(file, "strategy", OURS) for file in _yaml(files("kvlab.conf") / "strategy")]
    return ours + brought()


def brought() -> list[Installed]:
    """Everything that other packages bring. A class beside a file of the same name and package adds nothing."""
    found = [item for point in entry_points(group="kvlab.conf") for item in _folder(point)]
    named = {(item.package, item.name) for item in found if item.group == "strategy"}
    found += [_class(point) for point in entry_points(group="kvlab.strategies") if _key(point) not in named]
    return [replace(item, problem=item.problem or _clash(item, found)) for item in found]


def conf_packages() -> list[tuple[str, str]]:
    """(distribution, module) of the packages of YAML files that can be read."""
    points = entry_points(group="kvlab.conf")
    return [(_distribution(point), point.value) for point in points if isinstance(_files(point), Traversable)]


def problem(item: Installed) -> str:
    """Why it cannot be used, or nothing; its code is imported."""
    target = str(item.node.get("_target_"))
    try:
        if item.problem:
            return item.problem
        if item.group == "strategy":
            check_arguments(strategy_class(target), item.node)
        elif "_target_" in item.node:
            found = object_at(target, f"{item.group}._target_")
            if item.group in AXES and not hasattr(found, AXES[item.group]):
                return f"{item.group}._target_={target}: allowed is a class with a method {AXES[item.group]}"
    except UsageError as error:
        return str(error)
    return ""


def by_name(items: list[Installed]) -> dict[tuple[str, str], Installed]:
    """(group, name) -> what choosing it would get from another package, or get the reason why not."""
    found = {(item.group, item.name): item for item in items if not _is_ours(item.group, item.name)}
    for item in items:
        if item.group == "conf" and not _is_ours("strategy", item.name):  # most often called like its strategy
            found.setdefault(("strategy", item.name), item)
    return found


# --- what a package brings


def _folder(point: EntryPoint) -> list[Installed]:
    """What a package of YAML files holds, in every group."""
    folder, package = _files(point), _distribution(point)
    says = f"its entry point kvlab.conf names {point.value}"
    if not isinstance(folder, Traversable):
        problem = f"{says}, which cannot be imported: {folder}"
        return [Installed(point.name, {}, package, "conf", problem=problem)]
    groups = sorted((group for group in folder.iterdir() if group.is_dir()), key=lambda group: group.name)
    found = [_file(file, group.name, package) for group in groups for file in _yaml(group)]
    if not found:
        problem = f"{says}, which holds no GROUP/NAME.yaml; are they among the package's data?"
        return [Installed(point.name, {}, package, "conf", problem=problem)]
    return found


def _files(point: EntryPoint) -> Traversable | str:
    """The package's folder, or why there is none."""
    try:
        return files(point.value)
    except (Exception, SystemExit) as error:  # somebody else's package may fail in any way
        return reason(error)


def _yaml(folder: Traversable) -> list[Traversable]:
    return sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)


def _file(file: Traversable, group: str, package: str) -> Installed:
    import yaml

    name = file.name.removesuffix(".yaml")
    try:
        text = file.read_text(encoding="utf-8")
        node = yaml.safe_load(text)
    except (yaml.YAMLError, OSError, ValueError) as error:
        return Installed(name, {}, package, group, problem=f"{group}/{file.name} cannot be read: {reason(error)}")
    if isinstance(node, dict) and ("_target_" in node or group not in NEEDS_CLASS):
        return Installed(name, node, package, group, what=_first_comment(text))
    return Installed(name, {}, package, group, problem=f"{group}/{file.name} has no _target_")


def _first_comment(text: str) -> str:
    first = text.partition("\n")[0]
    return first.lstrip("# ").rstrip() if first.startswith("#") else ""


def _class(point: EntryPoint) -> Installed:
    """A strategy by its class; where that cannot be imported the node is its path alone, and others still can be."""
    target = point.value.replace(":", ".")
    try:
        node = node_of(target)
    except UsageError:
        node = {"_target_": target}
    return Installed(point.name, node, _distribution(point), is_class=True)


def _clash(item: Installed, found: Iterable[Installed]) -> str:
    """Who has the name already."""
    if item.group == "conf":
        return ""
    if _is_ours(item.group, item.name):
        return f"{item.group} {item.name} is kvlab's own; this one needs another name"
    same = [other for other in found if (other.group, other.name) == (item.group, item.name)]
    others = sorted({other.package for other in same} - {item.package})
    return f"{', '.join(others)} brings a {item.group} of this name, too; one of them has to go" if others else ""


def _is_ours(group: str, name: str) -> bool:
    return (files("kvlab.conf") / group / f"{name}.yaml").is_file()


def _key(point: EntryPoint) -> tuple[str, str]:
    return _distribution(point), point.name


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else re.split(r"[.:]", point.value)[0]
