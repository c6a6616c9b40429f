"""From Hydra's tree to one plain configuration, with what else was asked for beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kvlab.harness.presets import Preset
from kvlab.harness.settle import settle

# What an experiment may say beside a configuration: cases that go together (workload.n: ${cases.${case}.n}), which
OF_AN_EXPERIMENT = ("case", "cases")  # values are resolved from, and are no part of any run


@dataclass(frozen=True)
class Composed:
    """One run as it was asked for."""

    config: dict[str, Any]  # what decides the run; a shared name that its strategy lacks is None
    tracking: dict[str, Any]
    lacking: tuple[str, ...]  # the shared names that its strategy lacks
    run_dir: Path
    sweep_dir: Path
    sweep_params: dict[str, str]  # values for a sweep, from experiment=NAME
    launcher: dict[str, Any]  # the name under `launcher`, and the settings; empty: this machine

    @property
    def strategy(self) -> str:
        return str(self.config["strategy"]["name"])


def sweep_params(own: DictConfig) -> dict[str, str]:
    """Values for a sweep, from the node `hydra`."""
    return {str(name): str(value) for name, value in (own.sweeper.get("params") or {}).items()}


def composed(tree: DictConfig, names: set[str], preset_of: Callable[[str], Preset]) -> Composed:
    """Of Hydra's unresolved tree, when `names` were given; preset_of(name) reads that preset."""
    own = tree.hydra
    choices = {str(group): choice for group, choice in own.runtime.choices.items()}
    directories = Path(own.run.dir), Path(own.sweep.dir)
    params, launcher = sweep_params(own), _launcher(own, str(choices["hydra/launcher"]))
    preset = preset_of(str(choices["preset"])) if choices.get("preset") else None
    OmegaConf.set_struct(tree, False)
    del tree["hydra"]
    node = OmegaConf.to_container(tree.strategy, resolve=False) if tree.get("strategy") else {}
    plain = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    assert isinstance(node, dict)
    config = {str(name): value for name, value in plain.items()}
    tracking = {"name": choices.get("tracking") or "none", **(config.pop("tracking", None) or {})}
    for name in OF_AN_EXPERIMENT:
        config.pop(name, None)
    config, lacking = settle(config, {str(name): value for name, value in node.items()}, choices, names)
    if preset:
        config |= preset.told(choices, names, lambda setting: OmegaConf.select(tree, setting), lacking)
    return Composed(config, tracking, lacking, *directories, params, launcher)


def _launcher(own: DictConfig, name: str) -> dict[str, Any]:
    if name == "basic":
        return {}
    settings = OmegaConf.to_container(own.launcher, resolve=True, throw_on_missing=True)
    assert isinstance(settings, dict)
    return {"launcher": name, **{str(key): value for key, value in settings.items() if key != "_target_"}}
