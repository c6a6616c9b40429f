"""Reads the `workload` node of a configuration: each knob is checked here and nowhere else.

Every check raises UsageError with the knob's full name, what was given and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from kvlab.errors import UsageError

Config = Mapping[str, Any]


def whole(config: Config, knob: str, least: int = 1, most: int | None = 10**9, where: str = "workload.") -> int:
    """A whole number from `least` to `most`; None: however large."""
    value = config.get(knob)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{where}{knob}={shown(value)}: allowed is a whole number, {least} or more")
    if most is not None and value > most:
        raise UsageError(f"{where}{knob}={value}: allowed is at most {most}")
    return value


def optional_whole(config: Config, knob: str, least: int = 1) -> int | None:
    return None if config.get(knob) is None else whole(config, knob, least)


def number(config: Config, knob: str, low: float, high: float) -> float:
    """A number in [low, high]."""
    value = config.get(knob)
    if not is_finite(value) or not low <= value <= high:
        raise UsageError(f"workload.{knob}={shown(value)}: allowed is a number from {low:g} to {high:g}")
    return float(value)


def positive(config: Config, knob: str, default: float) -> float:
    """A number above 0, small enough to multiply lengths and times with; `default` where absent or null."""
    value = config.get(knob)
    if value is None:
        return default
    if not is_finite(value) or not 1e-9 <= value <= 1e9:
        raise UsageError(f"workload.{knob}={shown(value)}: allowed is a number above 0 (1e-9 to 1e9)")
    return float(value)


def choice(config: Config, knob: str, allowed: tuple[str, ...], default: str) -> str:
    value = config.get(knob)
    if value is None:
        return default
    if value not in allowed:
        raise UsageError(f"workload.{knob}={shown(value)}: allowed are {', '.join(allowed)}")
    return str(value)


def span(config: Config, knob: str) -> tuple[int, int]:
    """A range of whole numbers, written as {min, max}; both ends included."""
    value = config.get(knob)
    if not isinstance(value, Mapping) or set(value) != {"min", "max"}:
        raise UsageError(f"workload.{knob}={shown(value)}: a uniform workload takes {knob}.min and {knob}.max")
    low, high = (whole(value, end, where=f"workload.{knob}.") for end in ("min", "max"))
    if low > high:
        raise UsageError(f"workload.{knob}.min={low}: allowed is at most {knob}.max={high}")
    return low, high


def is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def shown(value: object) -> str:
    return "null" if value is None else str(value)
