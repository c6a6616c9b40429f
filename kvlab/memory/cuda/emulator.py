"""A CUDA driver in Python, for tests where no device is: real memory, the host's, and every rule of a real one.

It refuses what a driver refuses. Memory that nobody was let to access kills the process that touches it. A launch
reads the addresses it was said to until it ends; memory that is taken from under it kills the device.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

import torch

from kvlab.memory.cuda.driver import refusal
from kvlab.memory.host_vmm import PhysicalPool, Reservation, round_up

INVALID_VALUE, OUT_OF_MEMORY = "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_OUT_OF_MEMORY"
INVALID_CONTEXT, ILLEGAL_ADDRESS = "CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_ILLEGAL_ADDRESS"
NOT_SUPPORTED = "CUDA_ERROR_NOT_SUPPORTED"


@dataclass(slots=True, eq=False)
class _Handle:
    units: list[int]  # offsets in the emulator's memory, each of one granule
    released: bool = False
    mappings: int = 0


@dataclass(slots=True, eq=False)
class _Mapping:
    address: int
    nbytes: int
    handle: int


@dataclass(slots=True, eq=False)
class _Launch:
    ranges: list[tuple[int, int]]  # (address, bytes) that it reads
    held: bool
    done: threading.Event = field(default_factory=threading.Event)


class Emulator:
    """See Driver. `capacity`: bytes of memory; any number of addresses."""

    def __init__(self, capacity: int = 64 << 20, granularity: int = 2 << 20) -> None:
        self.granularity, self.device = granularity, torch.device("cpu")
        self._memory = PhysicalPool(capacity)
        self._units = list(range(0, capacity - granularity + 1, granularity))[::-1]  # that no handle has
        self._spaces: dict[int, tuple[Reservation, int]] = {}  # first address -> the host's range, bytes
        self._handles: dict[int, _Handle] = {}
        self._granules: dict[int, _Mapping] = {}  # address of each granule of a mapping
        self._events: dict[int, dict[int, _Launch]] = {}  # -> what ran when it was recorded
        self._launches: dict[int, _Launch] = {}  # that run
        self._number = 0  # the last that a handle, an event or a launch was given
        self._current, self._lock = threading.local(), threading.RLock()
        self._fail: tuple[str, int, bool, str] = ("", 0, False, "")
        self.dead, self._open = False, True
        self.calls: Counter[str] = Counter()  # since `fail`
        self.set_current()

    # --- what a test does

    def fail(self, call: str, nth: int, lasting: bool = False, error: str = OUT_OF_MEMORY) -> None:
        """The nth such call from now on, counted from 1, is refused; lasting: so are all after it."""
        self.calls.clear()
        self._fail = call, nth, lasting, error

    def launch(self, ranges: list[tuple[int, int]], held: bool = False) -> int:
        """A kernel begins to read these (address, bytes). It ends when somebody waits for it; held: by `finish`."""
        with self._lock:
            self._number += 1
            self._launches[self._number] = _Launch(ranges, held)
            return self._number

    def finish(self, launch: int) -> None:
        with self._lock:
            self._launches.pop(launch).done.set()

    def live(self) -> dict[str, int]:
        mappings = len(set(self._granules.values()))
        counts = {"handles": len(self._handles), "mappings": mappings, "reservations": len(self._spaces)}
        return {**counts, "events": len(self._events), "contexts": int(self._open)}

    # --- the driver

    def set_current(self) -> None:
        self._enter("cuCtxSetCurrent", context=False)
        self._current.here = True

    def reserve(self, nbytes: int) -> int:
        with self._lock:
            self._enter("cuMemAddressReserve", self._whole(nbytes))
            space = Reservation(nbytes + self.granularity)
            address = round_up(space.base, self.granularity)
            self._spaces[address] = space, nbytes
            return address

    def free(self, address: int, nbytes: int) -> None:
        with self._lock:
            space, size = self._spaces.get(address, (None, 0))
            whole = size == nbytes and not any(address <= granule < address + nbytes for granule in self._granules)
            self._enter("cuMemAddressFree", whole)
            if space is not None:
                space.close()
            del self._spaces[address]

    def create(self, nbytes: int) -> int:
        with self._lock:
            self._enter("cuMemCreate", self._whole(nbytes))
            count = nbytes // self.granularity
            if count > len(self._units):
                raise refusal("cuMemCreate", OUT_OF_MEMORY)
            self._number += 1
            self._handles[self._number] = _Handle([self._units.pop() for _ in range(count)])
            return self._number

    def release(self, handle: int) -> None:
        with self._lock:
            self._enter("cuMemRelease", self._alive(handle))
            self._handles[handle].released = True
            self._forget(handle)

    def map(self, address: int, nbytes: int, handle: int, offset: int = 0) -> None:
        with self._lock:
            granules = self._range(address, nbytes)
            space = any(base <= address and address + nbytes <= base + size for base, (_, size) in self._spaces.items())
            taken = any(granule in self._granules for granule in granules)
            fits = self._whole(nbytes) and address % self.granularity == 0 and self._alive(handle)
            self._enter("cuMemMap", fits and space and not taken)
            if offset or len(granules) != len(self._handles[handle].units):
                raise refusal("cuMemMap", NOT_SUPPORTED)
            self._granules.update(dict.fromkeys(granules, _Mapping(address, nbytes, handle)))
            self._handles[handle].mappings += 1

    def set_access(self, address: int, nbytes: int) -> None:
        with self._lock:
            mappings = self._mappings(address, nbytes)
            self._enter("cuMemSetAccess", bool(mappings))
            for mapping in mappings:
                for index, unit in enumerate(self._handles[mapping.handle].units):
                    space, at = self._space(mapping.address + index * self.granularity)
                    space.map(at, self._memory, unit, self.granularity)

    def unmap(self, address: int, nbytes: int) -> None:
        with self._lock:
            mappings = self._mappings(address, nbytes)
            self._enter("cuMemUnmap", bool(mappings))
            space, at = self._space(address)
            space.unmap(at, nbytes)
            for mapping in mappings:
                self._handles[mapping.handle].mappings -= 1
                self._forget(mapping.handle)
            for granule in self._range(address, nbytes):
                del self._granules[granule]
            self.dead |= any(
                start < address + nbytes and address < start + size
                for launch in self._launches.values()
                for start, size in launch.ranges
            )

    def create_event(self) -> int:
        with self._lock:
            self._enter("cuEventCreate")
            self._number += 1
            self._events[self._number] = {}
            return self._number

    def record(self, event: int) -> None:
        with self._lock:
            self._enter("cuEventRecord", event in self._events)
            self._events[event] = dict(self._launches)

    def synchronize(self, event: int) -> None:
        self._enter("cuEventSynchronize", event in self._events)
        for number, launch in self._events[event].items():
            if launch.held:
                launch.done.wait()
            elif number in self._launches:
                self.finish(number)

    def destroy_event(self, event: int) -> None:
        with self._lock:
            self._enter("cuEventDestroy", event in self._events)
            del self._events[event]

    def free_bytes(self) -> int:
        self._enter("cuMemGetInfo")
        return len(self._units) * self.granularity

    def close(self) -> None:
        if self._open:
            self._enter("cuDevicePrimaryCtxRelease", context=False)
            self._open = False

    # --- inside

    def _enter(self, call: str, valid: bool = True, context: bool = True) -> None:
        """What comes before any work: whether the call fails, needs a context, and its arguments are taken."""
        self.calls[call] += 1
        name, nth, lasting, error = self._fail
        if call == name and (self.calls[call] == nth or (lasting and 0 < nth < self.calls[call])):
            raise refusal(call, error)
        if self.dead:
            raise refusal(call, ILLEGAL_ADDRESS)
        if context and not (self._open and getattr(self._current, "here", False)):
            raise refusal(call, INVALID_CONTEXT)
        if not valid:
            raise refusal(call, INVALID_VALUE)

    def _whole(self, nbytes: int) -> bool:
        return nbytes > 0 and nbytes % self.granularity == 0

    def _alive(self, handle: int) -> bool:
        return handle in self._handles and not self._handles[handle].released

    def _range(self, address: int, nbytes: int) -> range:
        return range(address, address + nbytes, self.granularity)

    def _mappings(self, address: int, nbytes: int) -> list[_Mapping]:
        """Those that make up the range, none if they do not exactly."""
        found = {self._granules.get(granule) for granule in self._range(address, nbytes)}
        mappings = [mapping for mapping in found if mapping is not None]
        exact = sum(mapping.nbytes for mapping in mappings) == nbytes and len(mappings) == len(found)
        return mappings if exact else []

    def _space(self, address: int) -> tuple[Reservation, int]:
        """The host's range around an address, and where in it."""
        first = max(base for base in self._spaces if base <= address)
        space, _ = self._spaces[first]
        return space, address - space.base

    def _forget(self, number: int) -> None:
        """The memory goes when it is released and mapped nowhere."""
        handle = self._handles[number]
        if handle.released and not handle.mappings:
            for unit in handle.units:
                self._memory.drop(unit, self.granularity)
            self._units += handle.units
            del self._handles[number]
