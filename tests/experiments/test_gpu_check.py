"""experiments/gpu_check.sh: every stage on stand-ins, what a stage that fails or hangs leaves, and the page."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "gpu_check"


@pytest.fixture
def main(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("main")
    for name in ("main", "table"):
        sys.modules.pop(name, None)


@pytest.fixture
def staged(main, monkeypatch, tmp_path):
    """staged(code, limit): what a stage whose process runs that code comes to."""

    def run(code, limit=30.0):
        (tmp_path / "stage_planted.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{FOLDER}{os.pathsep}{ROOT}")
        starter = tmp_path / "starter.py"
        starter.write_text(
            "import sys, main\nmain.STAGES['planted'] = (9, 'stage_planted', 'run')\nsys.exit(main.main())\n"
        )
        monkeypatch.setattr(main, "__file__", str(starter))
        return main.run_one("planted", limit, tmp_path, True)

    return run


def test_a_stage_that_fails_keeps_its_rows_and_says_why(staged):
    stage = staged("def run(report):\n    report.add(a=1)\n    report.add(a=2)\n    raise ValueError('no\\nluck')\n")
    assert (stage["status"], stage["reason"]) == ("failed", "ValueError: no luck")
    assert stage["rows"] == [{"a": 1}, {"a": 2}]


def test_a_stage_that_hangs_is_ended_and_keeps_its_rows(staged):
    stage = staged("import time\ndef run(report):\n    report.add(a=1)\n    time.sleep(600)\n", limit=6.0)
    assert stage["status"] == "timed out"
    assert stage["rows"] == [{"a": 1}]
    assert stage["seconds"] < 60


def test_a_stage_that_dies_says_so(staged):
    stage = staged("import os\ndef run(report):\n    report.add(a=1)\n    os.abort()\n")
    assert (stage["status"], stage["rows"]) == ("failed", [{"a": 1}])


def test_a_stage_without_time_is_left_out(staged):
    assert staged("def run(report):\n    report.add(a=1)\n", limit=1.0)["status"] == "left out"


def test_the_limits_fit_into_eight_minutes(main):
    *others, last = (limit for limit, _, _ in main.STAGES.values())
    assert sum(others) + 60 < main.TOTAL_S < 480
    assert last == main.TOTAL_S, "it has what they leave"


def test_the_page_names_every_stage_and_what_a_rehearsal_is(main):
    stages = [
        {"stage": name, "status": "ok", "reason": "", "seconds": 1.0, "rows": [{"name": "x"}]} for name in main.STAGES
    ]
    page = main.markdown({"rehearsal": True, "seconds": 3.0, "stages": stages})
    assert page.count("REHEARSAL") == 1
    assert all(f"## {name}" in page for name in main.STAGES)
    assert "REHEARSAL" not in main.markdown({"rehearsal": False, "seconds": 3.0, "stages": stages})


@pytest.mark.slow
def test_the_rehearsal_runs_every_stage_without_the_harness_libraries(main, tmp_path):
    """hydra and the like are made impossible to import."""
    for name in ("hydra", "omegaconf", "wandb", "matplotlib", "safetensors", "tokenizers", "gguf"):
        (tmp_path / "none").mkdir(exist_ok=True)
        (tmp_path / "none" / f"{name}.py").write_text("raise ImportError('not on a GPU box')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "none")}
    command = [ROOT / "experiments" / "gpu_check.sh", "--rehearse", "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    whole = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert [(s["stage"], s["status"], s["reason"]) for s in whole["stages"]] == [(s, "ok", "") for s in main.STAGES]
    assert done.returncode == 0, done.stdout[-2000:]
    assert whole["rehearsal"]
    rows = {stage["stage"]: stage["rows"] for stage in whole["stages"]}
    assert len({row["digest"] for row in rows["end to end"]}) == 1, "the same tokens from all"
    ahead, before = (next(row for row in rows["growth"] if row["map_ahead"] == m) for m in (1, 0))
    assert before["mapped_before"] > 0 < ahead["mapped_beside"]
    assert all(row["passed"] and not row["failed"] for row in rows["kernel tests"] + rows["device tests"])
    assert {row["op"] for row in rows["bandwidths"]} >= {"decode", "append", "copy", "copy memory"}
    assert "REHEARSAL" in (tmp_path / "out" / "gpu_check.md").read_text()
