"""A GPU that runs nothing: what is launched on it is compiled as for a real one, and written down.

Everything up to the driver is Triton's own launch: which pointers are aligned, which numbers are divisible by 16,
what is a constant. So a compiled variant is what a launch with such arguments runs, and nothing has to be kept in step
with the kernels' signatures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

# Bytes of shared memory that a program may take; a launch that wants more raises triton's OutOfResources.
SHARED_BYTES = {80: 166_912, 90: 232_448, 100: 232_448}
THREADS = 1024  # of a program, at most
WARP = 32


class Loaded(NamedTuple):
    """A kernel as the driver gets it."""

    name: str
    ptx: str
    cubin: bytes


class Launched(NamedTuple):
    """A launch: the kernel and what it asks of the machine."""

    kernel: Loaded
    grid: tuple[int, int, int]
    warps: int
    shared_bytes: int


@contextmanager
def recording(arch: int) -> Iterator[list[Launched]]:
    """The launches made inside, compiled for compute capability `arch` (90 is sm_90). Pointers may be the CPU's."""
    if arch not in SHARED_BYTES:
        raise ValueError(f"sm_{arch}: allowed is {', '.join(f'sm_{known}' for known in SHARED_BYTES)}")
    device = _Recorder(arch)
    driver.set_active(device)
    knobs.runtime.kernel_load_start_hook.add(device.starts_to_load)
    try:
        yield device.launches
    finally:
        knobs.runtime.kernel_load_start_hook.remove(device.starts_to_load)
        driver.set_active(None)  # whoever asks next gets the machine's own


class _Recorder:
    """Triton's driver interface, as far as launches use it."""

    def __init__(self, arch: int) -> None:
        self._arch = arch
        self._ptx = ""
        self.launches: list[Launched] = []
        self.utils = self

    def get_current_device(self) -> int:
        return self._arch  # Triton keeps compiled kernels by device, and each architecture has its own

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, WARP)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES[device]}

    def starts_to_load(self, module: Any, function: Any, name: str, files: dict[str, str], key: str) -> None:
        """Called right before load_binary, with the files that the kernel's stages of compilation are in."""
        self._ptx = Path(files[f"{name}.ptx"]).read_text()

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[Any, Loaded, int, int, int]:
        """(module, function, registers, spills, threads); what the second and third say is asked of the SASS later."""
        return None, Loaded(name, self._ptx, cubin), 0, 0, THREADS

    def unload_module(self, module: Any) -> None:
        """Nothing was loaded."""

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, stream: int, function: Loaded, *rest: Any) -> None:
            asked = metadata.num_warps, metadata.shared
            self.launches.append(Launched(function, (x, y, z), *asked))

        return launch
