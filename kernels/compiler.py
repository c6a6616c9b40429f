"""Compile a C file of this folder with the system's compiler, once a machine, and load it.

The shared object lies in the user's cache under a name that says all it depends on: source, headers that it
includes, flags, compiler and CPU. Two processes that compile the same file at once both end with a whole one.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from kvlab.cache import cache_dir

# Fast sums without -ffast-math, whose start-up code makes the whole process flush denormals to zero.
FLAGS = (
    "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi",
)  # fmt: skip


class CompileError(RuntimeError):
    """There is no C compiler, or it failed; the text says which."""


def load(source: Path, defines: tuple[str, ...], folder: Path | None = None) -> ctypes.CDLL:
    """The library of `source` compiled with these -D definitions, kept in `folder`. CompileError."""
    path = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if path is None:
        raise CompileError("no C compiler")
    flags = (*FLAGS, *(f"-D{define}" for define in defines))
    key = "\n".join((*_texts(source), *flags, _version(path), _cpu()))
    name = f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.so"
    library = (folder or cache_dir() / "kernels") / name
    if not library.exists():
        _compile(path, source, flags, library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:  # a cut file, or a file system that forbids execution
        raise CompileError(f"cannot load a compiled kernel: {error}") from error


def _texts(source: Path) -> list[str]:
    """Of the file and of the headers beside it that it includes, which may include others."""
    text = source.read_text()
    included = re.findall(r'^#include "(.+)"$', text, re.MULTILINE)
    return [text, *(inner for name in included for inner in _texts(source.with_name(name)))]


def _compile(compiler: str, source: Path, flags: tuple[str, ...], library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            fresh = Path(folder) / library.name
            command = [compiler, *flags, "-o", str(fresh), str(source), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["no message"]
                wrong = next((line for line in lines if "error" in line), lines[0])  # before it: who includes whom
                raise CompileError(f"{compiler} failed: {wrong}")
            os.replace(fresh, library)
    except OSError as error:
        raise CompileError(f"cannot keep compiled kernels: {error}") from error


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


@cache
def _cpu() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    kept = ("model name", "flags", "Features", "CPU part", "model\t")
    return "\n".join(line for line in lines if line.startswith(kept))
