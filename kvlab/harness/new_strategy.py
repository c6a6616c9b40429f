"""`kvlab new-strategy NAME`: a small package with a strategy that works, its YAML and the contract as its test.

The folder `template` beside this file is that package under the name `mine`: real files, that can be read and run.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path, PurePosixPath

from kvlab import strategy
from kvlab.errors import UsageError
from kvlab.harness import plugins

NUMBERS = ("null", "nan", "inf")  # strategy=nan would be a number to Hydra


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the strategy and of its package, as in my_arena")
    parser.add_argument("--dir", metavar="DIR", help="where the package goes; it must not be there yet (default: NAME)")


def run(args: argparse.Namespace) -> int:
    name, directory = args.name, Path(args.dir or args.name)
    check_name(name)
    if directory.exists():
        raise UsageError(f"{directory}: is there already; give another place with --dir DIR")
    check_free(name)
    written = write(name, directory)
    shown = shlex.quote(str(directory))
    print(f"{name}: a strategy that works, in {len(written)} files; change {directory}/src/{name}/strategy.py. Next:")
    print(f"  pip install -e {shown}\n  kvlab check {name}\n  kvlab sweep strategy={name},paged model=tiny max_len=512")
    return 0


def check_name(name: str) -> None:
    """Raise UsageError for a name that cannot be a package's, a class's and an override's."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not class_name(name) or name in NUMBERS:
        raise UsageError(f"{name!r}: allowed is a name in lower case, as in my_arena")
    if iskeyword(name) or iskeyword(class_name(name)):
        raise UsageError(f"{name}: is a word of Python; choose another name")
    if hasattr(strategy, class_name(name)):
        raise UsageError(
            f"{name}: its class would be called {class_name(name)}, as kvlab's own is; choose another name"
        )


def check_free(name: str) -> None:
    """Raise UsageError if a strategy or a module is called so."""
    for item in plugins.everything():
        if item.group == "strategy" and item.name == name:
            raise UsageError(f"{name}: a strategy of this name comes from {item.package}; choose another name")
    if find_spec(name) is not None:
        raise UsageError(f"{name}: a Python module of this name is installed; choose another name")


def class_name(name: str) -> str:
    return "".join(word.title() for word in name.split("_"))


def write(name: str, directory: Path) -> list[Path]:
    """The package in a new directory; its files."""
    written = []
    for path, file in _template(files("kvlab.harness") / "template", PurePosixPath()):
        target = directory / _renamed(str(path), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_renamed(file.read_text(encoding="utf-8"), name), encoding="utf-8")
        written.append(target)
    return written


def _template(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, Traversable]]:
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir() and item.name != "__pycache__":
            yield from _template(item, path / item.name)
        elif item.is_file():
            yield path / item.name, item


def _renamed(text: str, name: str) -> str:
    text = re.sub(r"(?<![A-Za-z])mine(?![A-Za-z])", name, text)
    return re.sub(r"\b(Test)?Mine\b", lambda found: (found[1] or "") + class_name(name), text)
