"""What the machine is, and the tests that a device makes different."""

from __future__ import annotations

import importlib.metadata
import os
import platform as host
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import torch
from common import open_device

ROOT = Path(__file__).resolve().parents[2]
SECONDS_TO_REPORT = 4
PACKAGES = ("torch", "triton", "cuda-bindings", "numpy", "pytest")
# They compile for devices that are not here, or need the command line's packages.
ELSEWHERE = ("test_gpu_bench.py", "test_gpu_compiled.py")


def environment(report: Any) -> None:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "missing"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    report.add(
        **open_device(report.rehearsal).describe(),
        **versions,
        python=sys.version.split()[0],
        system=host.platform(),
        cores=os.cpu_count(),
        commit=commit.stdout.strip() or "unknown",
        arch_list=",".join(torch.cuda.get_arch_list()),
    )


def kernel_tests(report: Any) -> None:
    folder = ROOT / "tests" / "kernels" / "gpu"
    if report.rehearsal:
        _pytest(report, "not slow and not gpu", folder / "test_gpu_geometry.py")
    else:
        _pytest(report, "not slow", folder, *_ignored(folder))


def device_tests(report: Any) -> None:
    memory, engine = ROOT / "tests" / "memory" / "cuda", ROOT / "tests" / "engine" / "cuda"
    if report.rehearsal:
        _pytest(report, "not slow and not gpu", memory / "test_drivers.py", engine / "test_graphs.py")
    else:
        kernels = ROOT / "tests" / "kernels" / "gpu"
        _pytest(report, "gpu", memory, engine, kernels, *_ignored(kernels))
        _pytest(report, "not slow and not gpu", engine)


def _ignored(folder: Path) -> list[str]:
    return [f"--ignore={folder / name}" for name in ELSEWHERE]


def _pytest(report: Any, marks: str, *what: Any) -> None:
    """Warnings of other versions of torch or triton fail nothing here, nor do plugins that happen to be installed.

    What did not end in time is counted up to there.
    """
    options = ["-v", "-p", "no:cacheprovider", "-W", "default", "--continue-on-collection-errors", "-m", marks]
    command = [sys.executable, "-m", "pytest", *options, *map(str, what)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    limit = max(1.0, report.ends - time.monotonic() - SECONDS_TO_REPORT)
    code: int | str = f"the end of {limit:.0f} s"
    try:
        done = subprocess.run(
            command, stdout=PIPE, stderr=STDOUT, check=False, cwd=ROOT, env=environment, timeout=limit
        )
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    text = output.decode(errors="replace")
    print(text[-20000:], flush=True)
    outcomes = Counter(re.findall(r" (PASSED|FAILED|SKIPPED|ERROR) +\[", text))
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    names = [str(Path(str(item)).name) for item in what if not str(item).startswith("--")]
    counts = {word.lower(): outcomes[word] for word in ("PASSED", "FAILED", "SKIPPED", "ERROR")}
    report.add(tests=f"-m '{marks}' {' '.join(names)}", **counts, ended=code, failures=failed[:20])
    if code:
        raise RuntimeError(f"pytest ended with {code}: {counts}, first {failed[:1]}")
