"""What a run is: its configuration, and the code that carries it out. Two runs that agree in both are one.

The code is kvlab's without its harness (how runs are started and tables are made decides no result), the packages that
classes named in the configuration come from, and a trace that is read from a file.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kvlab

APART = ("harness", "testing", "bench", "conf", "__pycache__")  # below kvlab/; conf/ is in the configuration
SOURCES = (".py", ".c", ".h", ".cu", ".json", ".csv")
DIGITS = 16


def code(config: Mapping[str, Any]) -> str:
    """Of what would run now; 16 hex digits."""
    parts = [_kvlab(), *(_package(name) for name in sorted(_foreign(config))), *map(_trace, _paths(config))]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:DIGITS]


@cache
def _kvlab() -> str:
    root = Path(kvlab.__file__).parent
    return _hashed(root, [path for path in _files(root) if path.relative_to(root).parts[0] not in APART])


@cache
def _package(name: str) -> str:
    """The folders of a package, or the file of a module that is in none; nothing where it cannot be found."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        return ""
    if found.submodule_search_locations is not None:
        return "".join(_hashed(Path(root), _files(Path(root))) for root in found.submodule_search_locations)
    path = Path(found.origin or "")
    return _hashed(path.parent, [path]) if path.is_file() else ""


@cache
def _trace(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _foreign(config: Mapping[str, Any]) -> set[str]:
    """The outermost modules of the classes that the configuration names, other than kvlab."""
    names = {target.partition(".")[0] for target in _targets(config)}
    return names - {"kvlab"}


def _targets(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(target := value.get("_target_"), str):
            yield target
        for item in value.values():
            yield from _targets(item)
    if isinstance(value, list | tuple):
        for item in value:
            yield from _targets(item)


def _paths(config: Mapping[str, Any]) -> list[Path]:
    workload = config.get("workload")
    path = workload.get("path") if isinstance(workload, Mapping) else None
    return [Path(path)] if isinstance(path, str) and Path(path).is_file() else []


def _files(root: Path) -> list[Path]:
    """Sorted, so that the hash does not depend on the file system; links inside a checkout are followed."""
    found = []
    for path in sorted(root.iterdir()):
        if path.is_dir():
            found += _files(path) if path.name != "__pycache__" else []
        elif path.suffix in SOURCES:
            found.append(path)
    return found


def _hashed(root: Path, files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
