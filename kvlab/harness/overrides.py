"""One override at a time: what Hydra's grammar takes, and what kvlab lets it set."""

from __future__ import annotations

from collections.abc import Iterable

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from kvlab.errors import UsageError
from kvlab.harness.validate import CHECKS

HYDRA_NAMES = ("hydra.run.dir", "hydra.sweep.dir", "hydra.searchpath", "hydra/launcher", "hydra.launcher.NAME")


def parse(parser: OverridesParser, line: str) -> Override:
    allowed = "write name=value, as in block_size=32, and special characters in quotes: \"name='a(b)'\""
    try:
        (override,) = parser.parse_overrides([line])
    except HydraException as error:
        raise UsageError(f"{line!r} is not an override; {allowed}") from error
    name = str(override.key_or_group)
    if not name:
        raise UsageError(f"{line!r} is not an override; {allowed}")
    known = name in HYDRA_NAMES or name.startswith("hydra.launcher.")
    if override.is_hydra_override() and not known:
        raise UsageError(f"{name}: allowed of Hydra's own settings is {words(HYDRA_NAMES)}")
    return override


def override_name(line: str) -> str:
    """What an override sets, without its grammar."""
    return line.lstrip("+~").partition("=")[0]


def is_value(override: Override) -> bool:
    """Whether it changes a value that is there, and so has no say in what else is composed."""
    name = str(override.key_or_group)
    plain = override.type is OverrideType.CHANGE and not override.is_hydra_override() and override.package is None
    return plain and (name in CHECKS or "." in name)


def class_by_hand(parsed: Iterable[Override]) -> str | None:
    """The class that is given instead of a strategy's name: its constructor is the schema."""
    given = {str(override.key_or_group): override for override in parsed}
    if "strategy" in given or "strategy._target_" not in given:
        return None
    return str(given["strategy._target_"].value())


def refuse_several(override: Override) -> None:
    if override.is_sweep_override():
        line = str(override.input_line)
        raise UsageError(f"{line}: several values are for `kvlab sweep`; a list is written [a,b]")


def alternatives(override: Override) -> list[str]:
    """The override once for each of its values."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if not override.is_discrete_sweep():
        raise UsageError(f"{override.input_line}: allowed is a,b,c or range() or choice() or glob()")
    name = override.get_key_element()
    if name.startswith(("tracking", "hydra")):
        raise UsageError(f"{override.input_line}: {name} is the same for a whole sweep; give one value")
    return [f"{name}={value}" for value in override.sweep_string_iterator()]


def words(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing yet"
