"""Copies of a strategy, and whether anything in it has changed: values, order of dicts and lists, arrays."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kvlab.strategy import Strategy

ATOMS = (int, float, complex, str, bytes, bool, type(None), type, range, np.generic)


class Snapshot:
    """A strategy as it is now. Pickled where that works, which is ten times as fast as a deep copy."""

    def __init__(self, strategy: Strategy) -> None:
        self.pickled = _pickled(strategy)
        self.copied = None if self.pickled else _deepcopy(strategy)

    def difference(self, strategy: Strategy) -> str | None:
        """The first attribute that is not what it was, and how; None: nothing changed."""
        if self.pickled and self.pickled == _pickled(strategy):
            return None
        return difference(vars(self.copy()), vars(strategy), "")

    def copy(self) -> Strategy:
        """A strategy of its own in that state; the snapshot is not used up."""
        if self.pickled is None:
            made: Strategy = _deepcopy(self.copied)
        else:
            made = pickle.loads(self.pickled)
        return made


def clone(strategy: Strategy) -> Strategy:
    return Snapshot(strategy).copy()


def difference(before: Any, after: Any, where: str) -> str | None:
    """Where two object graphs differ first. Sets are equal in any order, dicts and lists are not."""
    seen: set[tuple[int, int]] = set()
    stack = [(before, after, where)]
    while stack:
        a, b, path = stack.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        if type(a) is not type(b):
            return f"{path} was {_short(a)}, is {_short(b)}"
        parts = _parts(a, b)
        if parts is None:
            if not _equal(a, b):
                return _apart(a, b, path)
            continue
        if [name for name, *_ in parts[0]] != [name for name, *_ in parts[1]]:
            return f"{path} was {_short(a)}, is {_short(b)}"
        stack += [(old, new, path + name) for (name, old), (_, new) in reversed(list(zip(*parts, strict=True)))]
    return None


def size(strategy: Strategy) -> int:
    """How many objects it consists of; arrays and numbers are one each."""
    seen: set[int] = set()
    stack, count = [vars(strategy)], 0
    while stack:
        x = stack.pop()
        count += 1
        if isinstance(x, (*ATOMS, set, frozenset, np.ndarray)):
            count += len(x) if isinstance(x, (set, frozenset)) else 0
        elif id(x) not in seen:
            seen.add(id(x))
            stack += [part for _, part in _children(x)]
    return count


def _parts(a: Any, b: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]] | None:
    """Both objects' parts by name, in order; None where they are compared as wholes."""
    if isinstance(a, (*ATOMS, set, frozenset, np.ndarray)):
        return None
    return _children(a), _children(b)


def _children(x: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    if isinstance(x, dict):
        found += (
            [(f"[{key!r}]", value) for key, value in x.items()]
            if not _names(x)
            else [(f".{key}", value) for key, value in x.items()]
        )
    elif _is_sequence(x):
        found += [(f"[{index}]", value) for index, value in enumerate(x)]
    for cls in type(x).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        found += [(f".{name}", getattr(x, name)) for name in names if name[:2] != "__" and hasattr(x, name)]
    found += [(f".{name}", value) for name, value in getattr(x, "__dict__", {}).items()]
    return found


def _names(x: dict[Any, Any]) -> bool:
    return bool(x) and all(isinstance(key, str) and key.isidentifier() for key in x)


def _is_sequence(x: Any) -> bool:
    return hasattr(x, "__len__") and hasattr(x, "__getitem__") and hasattr(x, "__iter__")


def _equal(a: Any, b: Any) -> bool:
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else bool(a == b)


def _apart(a: Any, b: Any, path: str) -> str:
    """How two wholes differ; of arrays the first entry that does."""
    if isinstance(a, np.ndarray) and a.shape == b.shape:
        at = tuple(np.argwhere(a != b)[0].tolist())
        a, b, path = a[at].item(), b[at].item(), f"{path}{list(at)}"
    return f"{path} was {_short(a)}, is {_short(b)}"


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _pickled(strategy: Strategy) -> bytes | None:
    try:
        return pickle.dumps(strategy, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError):
        return None  # a class in a function, a lambda, a long chain of nodes


def _deepcopy(strategy: Any) -> Any:
    with _deep_recursion():
        return copy.deepcopy(strategy)


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """A linked list of nodes takes a deep copy several frames a node."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 20_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
