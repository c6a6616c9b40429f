"""What the preset of a real system sets, and what of it something given beside it has changed. Plain values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvlab.harness.results import flatten


@dataclass(frozen=True)
class Preset:
    """A file of conf/preset: groups and the names chosen of them, settings by their dotted names."""

    name: str
    groups: Mapping[str, str]
    values: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, node: Mapping[str, Any]) -> Preset:
        """node: the file as it is written, `defaults` with items such as {"override /strategy": "paged"}."""
        chosen = {key: choice for item in node.get("defaults", ()) for key, choice in item.items()}
        groups = {key.rpartition("/")[2]: choice for key, choice in chosen.items()}
        return cls(name, groups, dict(flatten({key: value for key, value in node.items() if key != "defaults"})))

    def told(
        self, choices: Mapping[str, Any], names: set[str], value: Callable[[str], Any], lacking: tuple[str, ...]
    ) -> dict[str, Any]:
        """What a run's configuration says of it: its name, and what it sets that the run has otherwise.

        choices: what was chosen at last. names: those given as overrides. value: a setting by its dotted name.
        lacking: names that the run's strategy has no use for; whatever they are, the run is the same.
        """
        groups = [
            group
            for group, choice in self.groups.items()
            if choices.get(group) != choice or any(name.startswith(f"{group}.") for name in names)
        ]
        values = [name for name, given in self.values.items() if value(name) != given]
        overridden = [name for name in groups + values if name not in lacking]
        return {"preset": self.name, "preset_overridden": overridden}
