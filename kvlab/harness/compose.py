"""Overrides in, one plain configuration out. With overrides.py the only file that knows Hydra.

Hydra composes and parses; kvlab starts its own processes. Of Hydra's launchers it takes the settings alone, and what
else Hydra could be told of jobs is refused.
Whatever is wrong with an override becomes a UsageError of one line that lists what is allowed.
"""

from __future__ import annotations

import copy
import difflib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from kvlab.errors import UsageError
from kvlab.harness import nodes, plugins
from kvlab.harness.clusters import missing
from kvlab.harness.composed import Composed, composed, sweep_params
from kvlab.harness.overrides import alternatives, class_by_hand, is_value, parse, refuse_several, words
from kvlab.harness.presets import Preset
from kvlab.model import shapes

HERE = "kvlab-conf"  # a folder of groups of one's own (gpu/mine.yaml), where kvlab is started; calibrate writes there

MAY_BE_NONE = ("preset", "experiment")  # groups of which nothing need be chosen


class Composer:
    """Hydra, started once for any number of compositions: `with Composer() as composer: ...`."""

    def __enter__(self) -> Composer:
        Plugins.instance().register(PluginPath)
        brought = plugins.brought()
        self.foreign = plugins.by_name(brought)
        self.classes = [item for item in brought if item.is_class and not item.problem]
        for item in self.classes:
            ConfigStore.instance().store(group="strategy", name=item.name, node=dict(item.node))
        GlobalHydra.instance().clear()
        hydra.initialize_config_module("kvlab.conf", version_base="1.3", job_name="kvlab")
        self.options: dict[str, list[str]] = {}
        self.bases: dict[tuple[str, ...], DictConfig] = {}
        self.left_out: list[str] = []  # by glob(), because it cannot be used: lines that say why
        return self

    def __exit__(self, *error: object) -> None:
        GlobalHydra.instance().clear()
        for item in self.classes:
            del ConfigStore.instance().repo["strategy"][f"{item.name}.yaml"]

    def compose(self, overrides: Sequence[str]) -> Composed:
        """One run. Raises UsageError."""
        parsed = self._parse(overrides)
        for override in parsed:
            refuse_several(override)
        with self._explained(parsed):
            names = {str(override.key_or_group) for override in parsed}
            return composed(self._tree(parsed), names, _preset)

    def expand(self, overrides: Sequence[str]) -> list[tuple[str, ...]]:
        """The overrides of each combination that commas, range(), choice() and glob() stand for.

        The sweep values of experiment=NAME count as if they stood before the overrides. Raises UsageError.
        """
        parsed = self._parse(overrides)
        experiments = next((alternatives(o) for o in parsed if o.get_key_element() == "experiment"), [""])
        rest = [override for override in parsed if override.get_key_element() != "experiment"]
        # Other overrides may need a value that is swept, and so need not compose without it.
        places = [str(override.input_line) for override in rest if str(override.key_or_group) == "hydra.searchpath"]
        found: list[tuple[str, ...]] = []
        for experiment in experiments:
            chosen = [experiment] if experiment else []
            swept = self._parse(self._sweep_values([*chosen, *places]) if chosen else [])
            axes = {override.get_key_element(): self._usable(override) for override in [*swept, *rest]}
            found += [(*chosen, *combination) for combination in product(*axes.values())]
        return found

    def _usable(self, override: Override) -> list[str]:
        """Its alternatives; glob() leaves out what cannot be used, and that is noted."""
        lines = alternatives(override)
        if not isinstance(override.value(), Glob):
            return lines
        for line in list(lines):
            if why := self._problem(*line.split("=", 1)):
                self.left_out.append(f"{override.input_line} leaves out {why}")
                lines.remove(line)
        return lines

    def _problem(self, group: str, name: str) -> str:
        """Why this choice, which another package brought, cannot be made; empty if it can."""
        item = self.foreign.get((group, name))
        why = plugins.problem(item) if item else ""
        return f"{group}={name} (from {item.package}): {why}" if item and why else ""

    def _sweep_values(self, overrides: Sequence[str]) -> list[str]:
        """What an experiment wants swept, as overrides."""
        parsed = self._parse(overrides)
        with self._explained(parsed):
            return [f"{name}={value}" for name, value in sweep_params(self._tree(parsed).hydra).items()]

    def _tree(self, parsed: list[Override]) -> DictConfig:
        """The configuration, unresolved. Hydra composes each choice of groups once; plain values are put in here."""
        values = [override for override in parsed if is_value(override)]
        base = tuple(str(override.input_line) for override in parsed if override not in values)
        if base not in self.bases:
            with warnings.catch_warnings(action="error"):  # a folder in hydra.searchpath that is not there
                self.bases[base] = hydra.compose("config", list(base), return_hydra_config=True)
        tree = copy.deepcopy(self.bases[base])
        if (target := class_by_hand(parsed)) is not None:
            tree.strategy = nodes.node_of(target)
        for override in values:
            try:
                OmegaConf.update(tree, override.key_or_group, override.value(), merge=True)
            except OmegaConfBaseException as error:
                raise UsageError(self._unknown(override, parsed)) from error
        return tree

    def _options(self, group: str) -> list[str]:
        """The names of a group, those of plugins that can be read included; none if there is no such group."""
        if group not in self.options:
            names = _loader().get_group_options(group)
            broken = [name for (_, name), item in self.foreign.items() if item.group == group and item.problem]
            self.options[group] = [name for name in names if name not in broken]
        return self.options[group]

    def _parse(self, overrides: Sequence[str]) -> list[Override]:
        parser = OverridesParser.create(config_loader=_loader())
        parsed = [self._spelled(parser, parse(parser, line)) for line in overrides]
        for override in parsed:
            if why := self._problem(str(override.key_or_group), str(override.value())):
                raise UsageError(why)
            free = override.is_delete() or override.is_sweep_override() or isinstance(override.value(), str)
            if not free and (options := self._options(str(override.key_or_group))):
                raise UsageError(f"{override.input_line}: allowed is {words(options)}")
        return parsed

    def _spelled(self, parser: OverridesParser, override: Override) -> Override:
        """As Hydra has it: model=Llama-3-8B is model=llama_3_8b, its file; preset=null is ~preset."""
        if override.key_or_group in MAY_BE_NONE and not override.is_delete() and override.value() is None:
            return parse(parser, f"~{override.key_or_group}")
        if override.key_or_group == "model" and isinstance(value := override.value(), str):
            name = shapes.choice(value)
            if value not in self._options("model") and name in self._options("model"):
                return parse(parser, f"model={name}")
        return override

    @contextmanager
    def _explained(self, parsed: list[Override]) -> Iterator[None]:
        try:
            yield
        except (HydraException, OmegaConfBaseException, UserWarning, YAMLError) as error:
            raise self._explain(error, parsed) from error

    def _explain(self, error: Exception, parsed: list[Override]) -> UsageError:
        if isinstance(error, MissingConfigException) and error.options is not None:
            group, _, name = str(error.missing_cfg_file).rpartition("/")
            if group == "hydra/launcher":
                return UsageError(f"{group}={name}: {missing(name)}")
            return UsageError(f"{group}={name}: allowed is {words(self._options(group))}{self._broken(group)}")
        bad = next((o for o in parsed if f"Could not override '{o.key_or_group}'" in str(error)), None)
        return UsageError(self._unknown(bad, parsed) if bad else " ".join(str(error).split()))

    def _broken(self, group: str) -> str:
        """What else is installed and cannot be read."""
        items = [item for (asked, _), item in self.foreign.items() if asked == group and item.problem]
        return "".join(f"; not {item}: {item.problem}" for item in items)

    def _unknown(self, bad: Override, parsed: list[Override]) -> str:
        """What may be written where `bad` was."""
        name = str(bad.key_or_group)
        parent, _, last = name.rpartition(".")
        chosen = [str(o.input_line) for o in parsed if not o.is_delete() and self._options(str(o.key_or_group))]
        tree = hydra.compose("config", chosen, return_hydra_config=name.startswith("hydra."))
        node = OmegaConf.select(tree, parent, default=None) if parent else tree
        if not isinstance(node, DictConfig):
            return f"{name}: no such name; {parent} has no parts"
        allowed = [str(key) for key in node]
        if last in allowed:
            return f"{bad.input_line}: not possible; write {name}=VALUE, or {name}.NAME=VALUE for each of its parts"
        near = difflib.get_close_matches(last, allowed, 1)
        hint = f"; did you mean {parent + '.' if parent else ''}{near[0]}?" if near else ""
        return f"{name}: no such name{hint} (allowed{' in ' + parent if parent else ''}: {words(allowed)})"


class PluginPath(SearchPathPlugin):
    """Adds the packages of YAML files that plugins bring, and the folder of the current directory."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if Path(HERE).is_dir():
            search_path.append(provider="here", path=f"file://{Path(HERE).absolute()}")
        for distribution, module in plugins.conf_packages():
            search_path.append(provider=distribution, path=f"pkg://{module}")


def compose(overrides: Sequence[str]) -> Composed:
    """One run. Raises UsageError."""
    with Composer() as composer:
        return composer.compose(overrides)


def _loader() -> ConfigLoader:
    return GlobalHydra.instance().config_loader()


def _preset(name: str) -> Preset:
    """What its file says, wherever that lies."""
    path = f"preset/{name}"
    source = next(source for source in _loader().get_sources() if source.is_config(path))
    node = OmegaConf.to_container(source.load_config(path).config)
    assert isinstance(node, dict)
    return Preset.of(name, {str(key): value for key, value in node.items()})
