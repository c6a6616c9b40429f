"""How a piece of code ends that may touch memory which is not there."""

from __future__ import annotations

import faulthandler
import os
import resource
import warnings
from collections.abc import Callable

import pytest
import torch


def _ending(code: Callable[[], object]) -> int:
    """0, or the signal that killed a fork of this process which ran `code`; 1: it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads; it runs on one
        child = os.fork()
    if not child:
        status = 1
        try:
            torch.set_num_threads(1)
            faulthandler.disable()  # the death is wanted: no dump, no core
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


@pytest.fixture
def ending() -> Callable[[Callable[[], object]], int]:
    return _ending


@pytest.fixture(autouse=True)
def _one_thread(threads: Callable[[int], None]) -> None:
    """Of torch, unless a test says otherwise."""
