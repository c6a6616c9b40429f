"""The tests of this folder once more, in a process in which the real cuda.bindings load the stand-in."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OTHERS = sorted(path for path in HERE.glob("test_*.py") if path != Path(__file__))


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """The stand-in, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    triton = importlib.util.find_spec("triton")
    if compiler is None:
        pytest.skip("no C compiler")
    if triton is None or triton.origin is None:
        pytest.skip("no triton, which brings cuda.h along")
    path = tmp_path_factory.mktemp("libcuda") / "libcuda.so.1"
    headers = Path(triton.origin).parent / "backends" / "nvidia" / "include"
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", f"-I{headers}")
    subprocess.run([compiler, *flags, "-o", str(path), str(HERE / "libcuda.c")], check=True)
    return path


def run(library: Path, marks: str) -> int:
    """How many tests passed; all must."""
    options = ("-q", "-p", "no:cacheprovider", "-m", f"{marks} and not gpu")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    command = [sys.executable, "-m", "pytest", *options, *map(str, OTHERS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=HERE.parents[2])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found
    assert "skipped" not in done.stdout
    return int(found[1])


@pytest.mark.slow
def test_all_of_it_over_the_real_bindings(library):
    assert run(library, "not slow") > 50


@pytest.mark.slow
def test_the_slow_ones_over_the_real_bindings(library):
    assert run(library, "slow") > 0
