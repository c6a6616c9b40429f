"""Compile a C file of this folder with the system's compiler, once a machine, and load it.

The shared object lies in the user's cache under a name that says all it depends on: source, headers that it
includes, flags, compiler and CPU. Two processes that compile the same file at once both end with a whole one. Behind
it stands its checksum: what a full disk or a crash has cut is compiled anew, since loading it would end the process.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from kvlab.cache import cache_dir, staged
from kvlab.errors import UsageError

# Fast sums without -ffast-math, whose start-up code makes the whole process flush denormals to zero.
FLAGS = (
    "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi",
)  # fmt: skip
CHECKSUM = hashlib.sha256().digest_size  # bytes


NONE = "no C compiler"


class CompileError(RuntimeError):
    """There is no C compiler, or it failed; the text says which."""


def load(source: Path, defines: tuple[str, ...], folder: Path | None = None) -> ctypes.CDLL:
    """The library of `source` compiled with these -D definitions, kept in `folder`. CompileError."""
    path = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if path is None:
        raise CompileError(NONE)
    flags = (*FLAGS, *(f"-D{define}" for define in defines))
    key = "\n".join((*_texts(source), *flags, _version(path), _cpu()))
    name = f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.so"
    library = (folder or cache_dir() / "kernels") / name
    if not _is_whole(library):
        _compile(path, source, flags, library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:  # a file system that forbids execution, or a library that it needs is gone
        raise CompileError(f"cannot load a compiled kernel: {error}") from error


def in_torch(what: str, error: CompileError) -> None:
    """Says once that something runs in torch; without any compiler, once of everything."""
    everything = f"{NONE}: attention, layers and copies run in torch, several times slower"
    _warn(everything if str(error) == NONE else f"{what} in torch, which is slower: {error}")


@cache
def _warn(line: str) -> None:
    logging.getLogger(__name__).warning("%s", line)


def _texts(source: Path) -> list[str]:
    """Of the file and of the headers beside it that it includes, which may include others."""
    text = source.read_text()
    included = re.findall(r'^#include "(.+)"$', text, re.MULTILINE)
    return [text, *(inner for name in included for inner in _texts(source.with_name(name)))]


def _is_whole(library: Path) -> bool:
    try:
        content = library.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-CHECKSUM]).digest() == content[-CHECKSUM:]


def _compile(compiler: str, source: Path, flags: tuple[str, ...], library: Path) -> None:
    try:
        with staged(library) as fresh:
            done = _run(compiler, *flags, "-o", str(fresh), str(source), "-lm")
            if done.returncode or not fresh.exists():
                lines = done.stderr.strip().splitlines() or [f"status {done.returncode}, and no message"]
                wrong = next((line for line in lines if "error" in line), lines[0])  # before it: who includes whom
                raise CompileError(f"{compiler} failed: {wrong}")
            checksum = hashlib.sha256(fresh.read_bytes()).digest()
            with fresh.open("ab") as file:  # whoever loads it does not look behind the last section
                file.write(checksum)
    except UsageError as error:
        raise CompileError(f"cannot keep compiled kernels: {error}") from error


def _run(compiler: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [compiler, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:  # a broken file of that name
        raise CompileError(f"{compiler} cannot be run: {error.strerror}") from error


@cache
def _version(compiler: str) -> str:
    return _run(compiler, "--version").stdout


@cache
def _cpu() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    kept = ("model name", "flags", "Features", "CPU part", "model\t")
    return "\n".join(line for line in lines if line.startswith(kept))
