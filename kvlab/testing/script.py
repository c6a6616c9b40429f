"""A history as a program: strategy calls, launches, and a last line that fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from kvlab.strategy import Arrival, Memory, Strategy
from kvlab.testing.rule import RuleError

REFUSALS = ("refusal", "lookup is pure")


def call(name: str, args: tuple[Any, ...]) -> str:
    """One line of the program."""
    if name == "apply":
        return "device.carry_out()"
    if name == "launch":
        sequence, start, stop = args
        space = f", space={sequence.space}" if sequence.space else ""
        return f"device.write({sequence.seq}, {sequence.ids[:stop]}, {start}{space})"
    return f"strategy.{name}({', '.join(map(argument, args))})"


def argument(value: Any) -> str:
    if isinstance(value, Arrival):
        space = f", space={value.space}" if value.space else ""
        tokens = [] if value.ids is None else value.ids.tolist()
        return f"arrival({value.seq}, {tokens}, {value.prompt}, {value.limit}, {value.expected}{space})"
    if isinstance(value, np.ndarray):
        return f"ids({', '.join(map(str, value.tolist()))})"
    return repr(value)


def program(make: Callable[[Memory], Strategy], memory: Memory, log: list[str], failure: Exception) -> str:
    """The whole program."""
    cls, built = construction(make, memory)
    head = [
        f"# {type(failure).__name__ if not isinstance(failure, RuleError) else 'broken'}: {failure}",
        f"from {cls.__module__} import {cls.__qualname__}",
        "",
        "from kvlab.strategy import Memory",
        "from kvlab.testing.replay import *",
        "",
        f"memory = {memory_text(memory)}",
        f"strategy = {built}",
        "device = Device(strategy)  # remembers what each slot holds",
        "",
    ]
    lines = list(log)
    if isinstance(failure, RuleError):
        if failure.rule in REFUSALS:
            lines.insert(len(lines) - 1, "before = Snapshot(strategy)")
            lines.append("assert before.difference(strategy) is None, before.difference(strategy)")
        else:
            lines.append(f"assert {failure.assertion}, {str(failure)!r}")
    return "\n".join([*head, *lines]) + "\n"


def memory_text(memory: Memory) -> str:
    given = [(field.name, getattr(memory, field.name)) for field in fields(memory)]
    return f"Memory({', '.join(f'{name}={value!r}' for name, value in given if value != (None,))})"


def construction(make: Callable[[Memory], Strategy], memory: Memory) -> tuple[type[Strategy], str]:
    """The class that `make` makes, and the call that it does."""
    cls, given = watch(make, memory)
    rest = [f"{name}={value_text(value)}" for name, value in given.items()]
    return cls, f"{cls.__qualname__}({', '.join(['memory', *rest])})"


def target(make: Callable[[Memory], Strategy], memory: Memory) -> str:
    """The same for the command line."""
    cls, given = watch(make, memory)
    plain = [f"strategy.{name}={value}" for name, value in given.items() if is_plain(value)]
    return " ".join([f"strategy._target_={cls.__module__}.{cls.__qualname__}", *plain])


def watch(make: Callable[[Memory], Strategy], memory: Memory) -> tuple[type[Strategy], dict[str, Any]]:
    """What `make` makes, and the arguments beside the memory that it makes it with."""
    cls = type(make(memory))
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    plain, own = cls.__init__, "__init__" in cls.__dict__

    def watching(self: Any, *args: Any, **kwargs: Any) -> None:
        calls.append((args, kwargs))
        plain(self, *args, **kwargs)

    cls.__init__ = watching  # type: ignore[method-assign]
    try:
        make(memory)
    finally:
        if own:
            cls.__init__ = plain  # type: ignore[method-assign]
        else:
            del cls.__init__
    args, kwargs = calls[0]
    return cls, dict(list(inspect.signature(plain).bind(None, *args, **kwargs).arguments.items())[2:])


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def value_text(value: Any) -> str:
    if is_plain(value):
        return repr(value)
    return f"__import__({type(value).__module__!r}, fromlist=['']).{type(value).__qualname__}()"
