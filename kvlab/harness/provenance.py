"""Where a result comes from: versions, commit and machine, as they go into result.json."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import kvlab

PACKAGES = ("torch", "numpy", "triton", "cuda-python", "hydra-core", "gguf")


@cache
def versions() -> dict[str, Any]:
    """Version strings; commit and dirty are None outside a checkout of kvlab. As they were when first asked for."""
    found: dict[str, Any] = {"kvlab": kvlab.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return {**found, **commit(Path(kvlab.__file__).parents[1])}


def commit(root: Path) -> dict[str, Any]:
    """The commit checked out at `root`, and whether files differ from it."""
    if not (root / ".git").exists():
        return {"commit": None, "dirty": None}
    head, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
    return {"commit": head, "dirty": None if changes is None else bool(changes)}


def brief(*packages: str) -> dict[str, Any]:
    """What a page of measurements says of the machine and the code: cpu, cores, python, those packages, commit."""
    known, on = versions(), machine()
    named = {package: known[package] for package in ("python", *packages)}
    return {"cpu": on["cpu"], "cores": on["cores"], **named, "commit": known["commit"] and known["commit"][:7]}


@cache
def machine() -> dict[str, Any]:
    """What the run ran on."""
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "os": platform.platform(),
    }


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def available_bytes() -> int | None:
    """Memory that can be taken without swapping; None where the system does not say."""
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.exists() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
