"""Classes and functions by their path, `package.module.name`, wherever they were installed or lie."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from kvlab.errors import UsageError


def object_at(path: str, key: str = "_target_") -> Any:
    """What `package.module.name` is. Raises UsageError if there is none; `key` is where the path was given."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(_module(module), name)
    except (Exception, SystemExit) as error:  # somebody else's file may fail in any way
        raise UsageError(
            f"{key}={path}: cannot be imported: {reason(error)}; allowed is package.module.Class"
        ) from error


def class_at(path: str, key: str = "_target_") -> type[Any]:
    """The class `package.module.Class`. Raises UsageError if there is none."""
    found = object_at(path, key)
    if not isinstance(found, type):
        raise UsageError(f"{key}={path}: is no class; allowed is package.module.Class")
    return found


def reason(error: BaseException) -> str:
    """One line. Some errors say nothing, or only a word, without their name."""
    words = " ".join(f"{error}".split())
    if isinstance(error, LookupError | SystemExit) or not words:
        return f"{type(error).__name__}{words and f': {words}'}"
    return words


def _module(name: str) -> ModuleType:
    """The module; one that is not installed is looked for in the current directory.

    That directory comes last and only then, so that no file in it stands in for an installed module.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        if error.name != name.partition(".")[0] or here in sys.path:
            raise
        sys.path.append(here)
        return import_module(name)
