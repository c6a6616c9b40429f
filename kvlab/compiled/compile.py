"""Compiles variants for GPUs that need not be there, in processes of their own: on any Linux machine with Triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from kvlab.compiled.variants import Variant

Job = tuple[Variant, int]


@dataclass(frozen=True)
class Compiled:
    """One kernel of a variant, as machine code for one architecture."""

    variant: Variant
    arch: int
    kernel: str
    warps: int
    shared_bytes: int
    registers: int  # this and the next four: see kvlab.compiled.sass.Machine
    stack_bytes: int
    spills: int
    tensor: list[str]
    wide: int
    widths: dict[str, list[int]]  # source line: bytes that it moves at once to or from global memory


class VariantError(Exception):
    """Variants do not compile, or a worker died."""


def compile_all(jobs: Iterable[Job], processes: int = 2, triton: str | None = None) -> list[Compiled]:
    """Every kernel that the variants launch, in the order of the jobs. triton: a folder with another Triton to use.

    Raises VariantError, which names the variants that failed and why.
    """
    listed = list(jobs)
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(processes) as pool:
        parts = list(pool.map(partial(_work, cache, triton), [listed[i::processes] for i in range(processes)]))
    lines = [line for part in parts for line in part]
    failed = [f"{Variant(**line['variant'])}, sm_{line['arch']}: {line['error']}" for line in lines if "error" in line]
    if failed:
        raise VariantError("\n".join(failed))
    order = {job: index for index, job in enumerate(listed)}
    found = [Compiled(**{**line, "variant": Variant(**line["variant"])}) for line in lines]
    return sorted(found, key=lambda compiled: order[compiled.variant, compiled.arch])


def _work(cache: str, triton: str | None, jobs: list[Job]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "kvlab.compiled.worker"],
        input=json.dumps([[asdict(variant), arch] for variant, arch in jobs]),
        env=environment(cache, triton),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise VariantError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def environment(cache: str, triton: str | None = None) -> dict[str, str]:
    """For a process that compiles, whatever this one does, and that finds nothing compiled before in `cache`."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [path for path in (triton, kept.get("PYTHONPATH")) if path]
    return {**kept, "TRITON_CACHE_DIR": cache, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}
