"""Every test in a directory of its own, with runs that are over at once and W&B kept off the network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

STUB = Path(__file__).with_name("stub_job.py")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR", "WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end at once, each as its seed says."""
    monkeypatch.setattr("kvlab.harness.child.COMMAND", (sys.executable, str(STUB)))
    monkeypatch.setattr("kvlab.harness.validate.rehearse", lambda configs: None)
    monkeypatch.setattr("kvlab.harness.report.write_report", _report)


def _report(directory: Path) -> Path:
    path = directory / "report.md"
    path.write_text("the tables\n")
    return path
