"""Linux virtual memory: addresses are reserved once, physical memory is put under them and taken away.

A PhysicalPool is one memfd whose pages are backed from the moment they are mapped until they are dropped.
A Reservation is a range of addresses that kill the process when they are touched, except where a part of
a pool is mapped. Two reservations, or two places of one, may show the same part of a pool.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvlab.errors import UsageError

if TYPE_CHECKING:  # memory is backed while torch is being imported
    import torch

PAGE_BYTES = mmap.PAGESIZE  # of the operating system

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_NO_ACCESS = 0
_MAP_FIXED, _MAP_NORESERVE, _MAP_POPULATE = 0x10, 0x4000, 0x8000
_EMPTY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_BACKED = mmap.MAP_SHARED | _MAP_FIXED | _MAP_POPULATE
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_MAP_FAILED = ctypes.c_void_p(-1).value
_ZEROS_BYTES, _MOST_BUFFERS = 1 << 18, 1024  # what stays in a core's cache; what one call takes


class VmmError(RuntimeError):
    """The operating system refused a call on virtual memory."""

    def __init__(self, call: str, text: str) -> None:
        super().__init__(f"{call}: {text}")
        self.call = call


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number, offset = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64
    libc.mmap.restype = address
    libc.mmap.argtypes = [address, size, number, number, number, offset]
    libc.munmap.argtypes = [address, size]
    libc.fallocate.argtypes = [number, number, offset, offset]
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    vector, count = ctypes.POINTER(_Range), ctypes.c_ulong
    libc.process_vm_readv.argtypes = [number, vector, count, vector, count, count]
    return libc


def round_up(nbytes: int, unit: int = PAGE_BYTES) -> int:
    """`nbytes` rounded up to whole units."""
    return -(-nbytes // unit) * unit


class PhysicalPool:
    """`nbytes` of physical memory, none of it backed at first. Contents stay until they are dropped.

    beside: bytes that others are about to take. UsageError: there is not as much left.
    """

    def __init__(self, nbytes: int, beside: int = 0) -> None:
        _check_size("physical pool", nbytes)
        available = max(0, _available_bytes() - beside)
        if nbytes > available:  # beyond this the kernel kills processes instead of refusing
            raise UsageError(f"pool of {nbytes} bytes: allowed is at most what is free, {available}; lower pool_bytes")
        self.nbytes = nbytes
        self.fd = _memory_file(nbytes)
        self._close = weakref.finalize(self, os.close, self.fd)
        self._process = os.getpid()

    def committed_bytes(self) -> int:
        """What the operating system has backed; 0 once closed."""
        return os.fstat(self.fd).st_blocks * 512 if self._close.alive else 0

    def back(self) -> None:
        """Have all of it backed, and zero. VmmError: refused; what is backed by then stays so."""
        self.check(0, self.nbytes)
        zeros, done = memoryview(bytes(_ZEROS_BYTES)), 0
        while done < self.nbytes:
            whole, rest = divmod(self.nbytes - done, _ZEROS_BYTES)
            try:
                done += os.pwritev(self.fd, [zeros] * min(whole, _MOST_BUFFERS) or [zeros[:rest]], done)
            except OSError as error:
                raise VmmError("pwritev", str(error)) from error

    def drop(self, offset: int, nbytes: int) -> None:
        """Give the memory back. Where it is still mapped it reads as zeros, backed anew when touched."""
        self.check(offset, nbytes)
        if _libc().fallocate(self.fd, _KEEP_SIZE | _PUNCH_HOLE, offset, nbytes):
            raise _failure("fallocate")

    def check(self, offset: int, nbytes: int) -> None:
        """ValueError unless [offset, offset + nbytes) are whole pages of the pool, open and this process's.

        A fork shares the pool's memory with its parent, so it must not change what is backed.
        """
        if not self._close.alive:
            raise ValueError("the physical pool is closed")
        if os.getpid() != self._process:
            raise ValueError(f"the physical pool belongs to process {self._process}, not to its fork {os.getpid()}")
        _check_range("physical pool", offset, nbytes, self.nbytes)

    def close(self) -> None:
        """Let go of the memory; what reservations still map of it lives until they are closed."""
        self._close()


class Reservation:
    """`nbytes` of address space without memory, but where a part of a pool is mapped."""

    def __init__(self, nbytes: int) -> None:
        _check_size("reservation", nbytes)
        self.nbytes = nbytes
        self.base = _mmap(None, nbytes, _NO_ACCESS, _EMPTY, -1, 0)
        # Tensors hold on to this buffer: the addresses go to nobody else before the last of them is gone.
        self._buffer: ctypes.Array[ctypes.c_char] | None = (ctypes.c_char * nbytes).from_address(self.base)
        weakref.finalize(self._buffer, _libc().munmap, self.base, nbytes).atexit = False

    def map(self, offset: int, pool: PhysicalPool, pool_offset: int, nbytes: int) -> None:
        """Put that part of the pool, backed at once, under [offset, offset + nbytes)."""
        self._check(offset, nbytes)
        pool.check(pool_offset, nbytes)
        _mmap(self.base + offset, nbytes, _READ_WRITE, _BACKED, pool.fd, pool_offset)

    def unmap(self, offset: int, nbytes: int) -> None:
        """Take away what is mapped there, if anything is."""
        self._check(offset, nbytes)
        # munmap would leave a hole that the next mmap of anybody may be given.
        _mmap(self.base + offset, nbytes, _NO_ACCESS, _EMPTY | _MAP_FIXED, -1, 0)

    def readable(self, offset: int) -> bool:
        """Whether the byte at `offset` has memory, asked without touching it."""
        self._check(offset // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES)
        byte = ctypes.create_string_buffer(1)
        here, there = _Range(ctypes.addressof(byte), 1), _Range(self.base + offset, 1)
        if _libc().process_vm_readv(os.getpid(), here, 1, there, 1, 0) == 1:
            return True
        if ctypes.get_errno() == errno.EFAULT:
            return False
        raise _failure("process_vm_readv")

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """The range from its start as a tensor. It must not outlive close; whoever reads it then dies."""
        if self._buffer is None:
            raise ValueError("the reservation is closed")
        import torch

        return torch.frombuffer(self._buffer, dtype=dtype, count=math.prod(shape)).view(shape)

    def close(self) -> None:
        """Take away whatever is mapped; a second time does nothing. VmmError: it goes with the last tensor."""
        if self._buffer is None:
            return
        try:
            self.unmap(0, self.nbytes)
        finally:
            self._buffer = None

    def _check(self, offset: int, nbytes: int) -> None:
        if self._buffer is None:
            raise ValueError("the reservation is closed")
        _check_range("reservation", offset, nbytes, self.nbytes)


def _memory_file(nbytes: int) -> int:
    """A file descriptor of that much memory, of which nothing is backed."""
    fd = -1
    try:
        fd = os.memfd_create("kvlab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise VmmError("memfd", str(error)) from error
    return fd


def _mmap(address: int | None, nbytes: int, protection: int, flags: int, fd: int, offset: int) -> int:
    result: int | None = _libc().mmap(address, nbytes, protection, flags, fd, offset)
    if result is None or result == _MAP_FAILED:
        raise _failure("mmap")
    return result


def _failure(call: str) -> VmmError:
    number = ctypes.get_errno()
    text = os.strerror(number)
    if number == errno.ENOMEM and call == "mmap":
        limit = Path("/proc/sys/vm/max_map_count").read_text().strip()
        text += f"; a process may have vm.max_map_count={limit} mappings, larger page groups need fewer"
    return VmmError(call, text)


def _available_bytes() -> int:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _check_size(what: str, nbytes: int) -> None:
    if nbytes <= 0 or nbytes % PAGE_BYTES:
        raise UsageError(f"{what} of {nbytes} bytes: allowed are multiples of the system's page, {PAGE_BYTES}")


def _check_range(what: str, offset: int, nbytes: int, limit: int) -> None:
    if offset % PAGE_BYTES or nbytes % PAGE_BYTES:
        raise ValueError(f"bytes {offset}+{nbytes} of a {what}: allowed are multiples of {PAGE_BYTES}")
    if offset < 0 or nbytes <= 0 or offset + nbytes > limit:
        raise ValueError(f"bytes {offset}+{nbytes} of a {what}: it has {limit}")
