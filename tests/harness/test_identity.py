"""What counts as the code of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlab.harness import identity

OURS = {"strategy": {"_target_": "kvlab.strategies.paged.Paged"}, "workload": {"path": None}}


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.syspath_prepend(tmp_path)
    yield
    forget()
    for name in ("coliseum", "alone"):
        sys.modules.pop(name, None)


def forget() -> None:
    """As a process that starts later."""
    for part in (identity._kvlab, identity._package, identity._trace):
        part.cache_clear()


def changed(config: dict[str, Any], path: Path, text: str) -> bool:
    before = identity.code(config)
    path.write_text(text)
    forget()
    return identity.code(config) != before


@pytest.mark.parametrize("namespace", [False, True])
def test_a_package_counts_with_all_its_files(namespace: bool, tmp_path: Path) -> None:
    (tmp_path / "coliseum").mkdir()
    (tmp_path / "coliseum/strategy.py").write_text("class Arena: size = 1\n")
    if not namespace:
        (tmp_path / "coliseum/__init__.py").write_text("")
    config = {**OURS, "strategy": {"_target_": "coliseum.strategy.Arena"}}
    assert identity.code(config) != identity.code(OURS)
    assert changed(config, tmp_path / "coliseum/strategy.py", "class Arena: size = 2\n")
    assert not changed(OURS, tmp_path / "coliseum/strategy.py", "class Arena: size = 3\n"), "it is not theirs"


def test_a_file_beside_others_counts_alone(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text("class Alone: size = 1\n")
    config = {**OURS, "eviction": {"_target_": "alone.Alone"}}
    assert changed(config, tmp_path / "alone.py", "class Alone: size = 2\n")
    assert not changed(config, tmp_path / "neighbour.py", "size = 1\n")


def test_a_trace_counts_by_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("prompt_len,output_len\n3,4\n")
    config = {**OURS, "workload": {"path": str(tmp_path / "trace.csv")}}
    assert changed(config, tmp_path / "trace.csv", "prompt_len,output_len\n3,5\n")
    assert not changed(config, tmp_path / "trace.csv", "prompt_len,output_len\n3,5\n")


def test_the_harness_decides_no_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("engine", "harness"):
        (tmp_path / "kvlab" / name).mkdir(parents=True)
        (tmp_path / "kvlab" / name / "part.py").write_text("x = 1\n")
    monkeypatch.setattr(identity.kvlab, "__file__", str(tmp_path / "kvlab/__init__.py"))
    forget()
    assert not changed(OURS, tmp_path / "kvlab/harness/part.py", "x = 2\n")
    assert changed(OURS, tmp_path / "kvlab/engine/part.py", "x = 2\n")
