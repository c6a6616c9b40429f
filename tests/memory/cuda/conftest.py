"""A device to run on, which is none: the emulator in Python, or the stand-in for libcuda below the real bindings.

The same tests run over both: over the stand-in in a process that finds it as its libcuda.so.1, which
test_over_standin.py starts.
"""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch

from kvlab.memory.cuda.bindings import CudaDriver
from kvlab.memory.cuda.emulator import OUT_OF_MEMORY, Emulator
from kvlab.memory.cuda.vmm import CudaVmm

PAGE, CAPACITY = 4096, 1 << 26
ERRORS = {"CUDA_ERROR_OUT_OF_MEMORY": 2, "CUDA_ERROR_INVALID_VALUE": 1}
LIVE = ("handles", "mappings", "reservations", "events", "contexts")


def _standin() -> ctypes.CDLL | None:
    """The process's libcuda, where it is the stand-in."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return library if hasattr(library, "standin_reset") else None


class Standin:
    """libcuda.c; `open` gives the driver of the real bindings."""

    name = "standin"

    def __init__(self, library: ctypes.CDLL, capacity: int, granularity: int) -> None:
        self.library = library
        if any(self.live().values()):
            gc.collect()  # of the test before; a tensor that goes later would free addresses of this one
        library.standin_reset(ctypes.c_size_t(capacity), ctypes.c_size_t(granularity))

    def open(self) -> CudaDriver:
        return CudaDriver(0, torch.device("cpu"))

    def fail(self, call: str, nth: int, lasting: bool = False, error: str = OUT_OF_MEMORY) -> None:
        self.library.standin_fail(call.encode(), nth, int(lasting), ERRORS[error])

    def calls(self, call: str) -> int:
        return self.library.standin_calls(call.encode())

    def launch(self, ranges: list[tuple[int, int]], held: bool = False) -> int:
        flat = [number for pair in ranges for number in pair]
        launch = self.library.standin_launch((ctypes.c_uint64 * len(flat))(*flat), len(ranges), int(held))
        assert launch >= 0, "the stand-in holds no more launches"
        return launch

    def finish(self, launch: int) -> None:
        self.library.standin_finish(launch)

    def live(self) -> dict[str, int]:
        counts = (ctypes.c_int * len(LIVE))()
        self.library.standin_live(counts)
        return dict(zip(LIVE, counts, strict=True))

    @property
    def dead(self) -> bool:
        return bool(self.library.standin_dead())


class Fake:
    """The emulator in Python behind the same knobs."""

    name = "emulator"

    def __init__(self, capacity: int, granularity: int) -> None:
        self.emulator = Emulator(capacity, granularity)
        self.fail, self.launch, self.finish = self.emulator.fail, self.emulator.launch, self.emulator.finish

    def open(self) -> Emulator:
        return self.emulator

    def calls(self, call: str) -> int:
        return self.emulator.calls[call]

    def live(self) -> dict[str, int]:
        return self.emulator.live()

    @property
    def dead(self) -> bool:
        return self.emulator.dead


@pytest.fixture(scope="session")
def new_device():
    """new_device(capacity, granularity): a device that nobody has used."""
    library = _standin()

    def make(capacity: int = CAPACITY, granularity: int = PAGE) -> Standin | Fake:
        return Standin(library, capacity, granularity) if library else Fake(capacity, granularity)

    return make


@pytest.fixture
def device(new_device):
    return new_device()


@pytest.fixture
def driver(device):
    return device.open()


@pytest.fixture
def vmm(driver):
    return CudaVmm(driver)


@pytest.fixture(scope="session")
def nothing_lives():
    """Whether a device has been left as it was found; what holds a tensor may be garbage that nobody has collected."""

    def check(device: Standin | Fake) -> None:
        if any(device.live().values()):
            gc.collect()
        assert not any(device.live().values()), device.live()

    return check
