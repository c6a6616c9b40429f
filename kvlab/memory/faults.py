"""Make one call on memory fail as if the operating system had refused it: to test what is undone then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvlab.memory import host, host_vmm, store
from kvlab.memory.host_vmm import PhysicalPool, Reservation, VmmError

# Kind of call -> where it is. A copy is all that go together, a swap one tensor's, a map or an unmap one reservation's.
CALLS: dict[str, tuple[Any, str]] = {
    "pool": (host_vmm, "_memory_file"),
    "reservation": (Reservation, "__init__"),
    "map": (Reservation, "map"),
    "unmap": (Reservation, "unmap"),
    "drop": (PhysicalPool, "drop"),
    "copy": (store, "copy_all"),
    "host": (host.HostMemory, "__init__"),
    "swap": (host, "transfer"),
}


class Calls:
    """How many calls of the kind were made so far, the one that failed included."""

    made = 0


@contextmanager
def fail(kind: str, nth: int, lasting: bool = False) -> Iterator[Calls]:
    """The nth call of that kind from here on, counted from 1, raises VmmError; lasting: so do all after it.

    nth=0 only counts. For one thread at a time: the calls are replaced for the whole process.
    """
    owner, name = CALLS[kind]
    real, calls = getattr(owner, name), Calls()

    def refusing(*arguments: Any) -> Any:
        calls.made += 1
        if calls.made == nth or (lasting and 0 < nth < calls.made):
            raise VmmError(kind, f"refused, call {calls.made}")
        return real(*arguments)

    setattr(owner, name, refusing)
    try:
        yield calls
    finally:
        setattr(owner, name, real)
