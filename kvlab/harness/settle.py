"""What is composed, made into a run's configuration: names put in, what has no effect taken out. Plain dicts only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvlab.errors import UsageError
from kvlab.harness import nodes
from kvlab.harness.validate import SIMULATED, validate


def settle(
    config: dict[str, Any], node: Mapping[str, Any], choices: Mapping[str, Any], names: set[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The configuration, and the shared names that its strategy lacks, which are None in it. Raises UsageError.

    node: the strategy's, not resolved. choices: group -> name. names: those that were given as overrides.
    """
    checked = without_limits(without_gpu(validate(named(config, choices, names)), names))
    lacking = lacked(checked, node)
    return {**checked, **dict.fromkeys(lacking)}, lacking


def named(config: dict[str, Any], choices: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Each group under the name it was chosen by; a class given by hand under its own."""
    for group, choice in choices.items():
        if isinstance(config.get(group), dict):
            config[group] = {"name": choice, **config[group]}
    if "strategy._target_" in names and "strategy.name" not in names:
        config["strategy"]["name"] = str(config["strategy"]["_target_"]).rpartition(".")[2].lower()
    return config


def without_gpu(config: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """A real run has no GPU of its configuration's choice. UsageError if one was asked for."""
    if config["executor"] == "simulated":
        return config
    for name in sorted(names):
        if name.partition(".")[0] in SIMULATED:
            raise UsageError(f"{name}: allowed with executor=simulated only")
    return {key: value for key, value in config.items() if key not in SIMULATED}


def without_limits(config: dict[str, Any]) -> dict[str, Any]:
    """Where no limit is given, a run is the one that it was before there were any."""
    if any(value is not None for value in config["slo"].values()):
        return config
    return {key: value for key, value in config.items() if key != "slo"}


def lacked(config: Mapping[str, Any], node: Mapping[str, Any]) -> tuple[str, ...]:
    """The shared names that the strategy lacks. A pool counted in blocks needs block_size, whoever manages it."""
    target = str(node.get("_target_"))
    cls = nodes.strategy_class(target)
    nodes.check_arguments(cls, node)
    used = nodes.knobs(node, cls)
    if config["pool_blocks"] is not None:
        used = (*used, "block_size")
    return tuple(name for name in nodes.SHARED if name not in used)
