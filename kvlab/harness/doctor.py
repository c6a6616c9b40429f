"""`kvlab doctor`: what works on this machine, tried and not guessed, and what to do about the rest."""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import mmap
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from kvlab.harness import provenance

SECONDS_WATCHED = 0.5
LEAST_MAPS = 65530  # Linux's default
LEAST_FREE = 2 * 2**30  # bytes: the model in float32, torch, and a pool


class Finding(NamedTuple):
    """ok: None where it is neither needed nor wrong to lack it."""

    ok: bool | None
    text: str


class Check(NamedTuple):
    name: str
    look: Callable[[], Finding]
    essential: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a list of objects")


def run(args: argparse.Namespace) -> int:
    """1 if something is missing without which kvlab cannot work."""
    found = [(check, _look(check)) for check in CHECKS]
    if args.json:
        rows = [{"name": c.name, "ok": f.ok, "essential": c.essential, "text": f.text} for c, f in found]
        print(json.dumps(rows, indent=1))
    else:
        width = max(len(check.name) for check in CHECKS)
        for check, finding in found:
            print(f"{MARKS[finding.ok]:3} {check.name:{width}}  {finding.text}")
    return int(any(check.essential and not finding.ok for check, finding in found))


MARKS = {True: "ok", False: "no", None: "-"}


def _look(check: Check) -> Finding:
    try:
        return check.look()
    except Exception as error:  # whatever breaks is the finding
        return Finding(False, " ".join(f"{type(error).__name__}: {error}".split()))


def _python() -> Finding:
    return Finding(sys.version_info >= (3, 11), f"{platform.python_version()}, {platform.platform()}")


def _torch() -> Finding:
    import torch

    return Finding(True, f"{torch.__version__}, {torch.get_num_threads()} threads of {provenance.cores()} cores")


def _compiler() -> Finding:
    names = [name for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name]
    path = next((found for name in names if (found := shutil.which(name.split()[0]))), None)
    if path:
        return Finding(True, path)
    return Finding(False, "no cc, gcc or clang: attention runs in torch, slower; install a C compiler")


def _virtual_memory() -> Finding:
    """Map two pages in the wrong order, look through the mapping, and take one away."""
    from kvlab.memory.host_vmm import PhysicalPool, Reservation

    page = mmap.PAGESIZE
    pool, reservation = PhysicalPool(2 * page), Reservation(4 * page)
    try:
        reservation.map(0, pool, page, page)
        reservation.map(page, pool, 0, page)
        seen = reservation.readable(0) and reservation.readable(page) and not reservation.readable(2 * page)
        reservation.unmap(page, page)
        works = seen and not reservation.readable(page) and pool.committed_bytes() == 2 * page
    finally:
        reservation.close()
        pool.close()
    return Finding(works, "memfd, fixed mappings and guard pages work" if works else "mappings misbehave here")


def _map_count() -> Finding:
    count = int(Path("/proc/sys/vm/max_map_count").read_text())
    advice = "" if count >= LEAST_MAPS else f"; as root: sysctl vm.max_map_count={LEAST_MAPS}"
    return Finding(count >= LEAST_MAPS, f"vm.max_map_count {count:,}: as many page groups, at worst{advice}")


def _memory() -> Finding:
    free = provenance.available_bytes()
    if free is None:
        return Finding(None, "the system does not say")
    advice = "" if free >= LEAST_FREE else "; model=tiny needs little, or give a small pool_bytes"
    return Finding(free >= LEAST_FREE, f"{free / 2**30:,.1f} GiB available{advice}")


def _quiet() -> Finding:
    from kvlab.record.others import BUSY_ABOVE, OthersShare

    others = OthersShare()
    time.sleep(SECONDS_WATCHED)
    share = others.share()
    if share is None:
        return Finding(None, "the system does not say what others use; timings will be flagged")
    advice = "" if share <= BUSY_ABOVE else f"; timings are flagged above {BUSY_ABOVE:.0%}"
    return Finding(share <= BUSY_ABOVE, f"others use {share:.1%} of the CPU just now{advice}")


def _driver() -> Finding:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Finding(None, "no NVIDIA driver: device=cpu is what runs here")
    import torch

    if not torch.cuda.is_available():
        return Finding(None, "an NVIDIA driver, but this torch sees no device")
    return Finding(True, torch.cuda.get_device_name(0))


def _importable(module: str, distribution: str, purpose: str) -> Callable[[], Finding]:
    def look() -> Finding:
        try:
            importlib.import_module(module)
        except ImportError as error:
            return Finding(None, f"not importable ({error}); {purpose}: pip install {distribution}")
        return Finding(True, version(distribution))

    return look


def _wandb() -> Finding:
    from kvlab.harness.tracking import mode_of

    mode, why = mode_of(None, os.environ)
    return Finding(True, f"{version('wandb')}, {mode} ({why})")


def _model() -> Finding:
    from kvlab.model.fetch import model_path

    path = model_path()
    if path.exists():
        return Finding(True, f"{path}, {path.stat().st_size / 2**20:,.0f} MiB")
    return Finding(False, "not there: kvlab fetch model (model=tiny needs none)")


def _cache() -> Finding:
    from kvlab.cache import cache_dir

    path = cache_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return Finding(True, str(path))
    except OSError as error:
        return Finding(False, f"{path}: {error.strerror}; set XDG_CACHE_HOME to a directory you can write")


CHECKS = (
    Check("Python", _python, True),
    Check("torch", _torch, True),
    Check("C compiler", _compiler, False),
    Check("virtual memory", _virtual_memory, True),
    Check("map limit", _map_count, False),
    Check("memory", _memory, False),
    Check("quiet machine", _quiet, False),
    Check("CUDA", _driver, False),
    Check("Triton", _importable("triton", "triton", "GPU kernels"), False),
    Check("cuda-python", _importable("cuda.bindings.driver", "cuda-python", "GPU virtual memory"), False),
    Check("W&B", _wandb, False),
    Check("model", _model, False),
    Check("cache directory", _cache, False),
)
