"""From what was asked for to an engine that is ready, soon.

Importing torch keeps one core busy for a second. What needs no Python goes on beside it: torch's largest library is
loaded, the pool's memory is backed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from kvlab.memory.backing import begin_backing
from kvlab.model.load import load_from, usable_source
from kvlab.request import Request
from kvlab.strategy import Strategy

if TYPE_CHECKING:
    from kvlab.engine.cuda.platform import Platform
    from kvlab.engine.engine import Engine
    from kvlab.engine.executor import RealExecutor
    from kvlab.model.llama import Llama

LIBRARY = Path("lib", "libtorch_cpu.so")  # under torch's folder


@contextmanager
def opened_engine(
    config: dict[str, Any],
    strategy: Strategy,
    requests: list[Request],
    *,
    model: Llama | None = None,
    platform: Platform | None = None,
    **more: Any,
) -> Iterator[Engine[RealExecutor]]:
    """As real_engine, which takes `more` too, over a model that is loaded while the pool is backed.

    model: None: the one that `config` names. UsageError: it cannot be had, or there is too little memory.
    """
    device = str(platform.device) if platform else config["device"]
    with ExitStack() as stack:
        stack.callback(gc.unfreeze)
        with uncollected():
            source = None if model else usable_source(config["model"], config["dtype"])
            if source:
                source.begin()
            backing = None
            if platform is None and device == "cpu":
                backing = begin_backing(strategy, source.shape.weight_bytes(config["dtype"]) if source else 0)
            if backing:
                stack.callback(backing.close)
            from kvlab.engine.real import real_engine  # and with it torch

            if source:
                model = load_from(source, config["dtype"], device).model
            assert model is not None
            begun = real_engine(config, model, strategy, requests, platform=platform, backing=backing, **more)
            engine = stack.enter_context(begun)
        yield engine


def import_engine() -> None:
    """Begin to import what `opened_engine` imports, in a thread, before it is known what is to be opened."""
    Thread(target=_import, name="kvlab-imports").start()


def _import() -> None:
    with uncollected(), suppress(Exception):  # who opens an engine meets it too, and says so
        import kvlab.engine.real
        import kvlab.model.llama  # noqa: F401


class _Collector:
    """Whether the garbage collector is to run, where several threads say that it is not."""

    lock, absent, enabled = Lock(), 0, True

    @classmethod
    def leave(cls) -> None:
        with cls.lock:
            if not cls.absent:
                cls.enabled = gc.isenabled()
                gc.disable()
            cls.absent += 1

    @classmethod
    def come_back(cls) -> None:
        with cls.lock:
            cls.absent -= 1
            if cls.enabled and not cls.absent:
                gc.freeze()  # else it would look at all that has come up in somebody's first step
                gc.enable()


@contextmanager
def uncollected() -> Iterator[None]:
    """The garbage collector looks at nothing meanwhile, nor later at what came up: modules stay, and are many."""
    _Collector.leave()
    try:
        yield
    finally:
        _Collector.come_back()


def load_library() -> None:
    """Begin to load what torch is going to need; where that cannot be had, torch says so when it is imported."""
    found = None if "torch" in sys.modules else find_spec("torch")
    if found and found.origin:
        path = Path(found.origin).parent / LIBRARY
        Thread(target=_load, args=(path,), name="kvlab-library").start()


def _load(path: Path) -> None:
    """A call from outside of Python: ctypes.CDLL would let nobody run meanwhile."""
    load = ctypes.CDLL(None).dlopen
    load.argtypes, load.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    load(bytes(path), os.RTLD_NOW)
