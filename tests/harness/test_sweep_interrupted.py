"""`kvlab sweep` is interrupted, or killed: what is finished stays, and no run goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("stub")
HANGS = 95
SWEEP = ("sweep", "hydra.sweep.dir=out", "tracking=none")

INTERRUPTED = """
import sys
from kvlab.harness import child, report, validate
from kvlab.harness.cli import main
validate.rehearse = lambda configs: None
child.COMMAND = (sys.executable, sys.argv[1])
report.write_report = None
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(number: signal.Signals) -> None:
    stub = Path(__file__).with_name("stub_job.py")
    command = [sys.executable, "-c", INTERRUPTED, str(stub), *SWEEP, f"seed=1,{HANGS},2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    config = Path(f"out/seed={HANGS}/config.json")
    until(lambda: config.exists() and f"seed={HANGS}" in Path("out/log.txt").read_text())
    (child,) = children(process.pid)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.endswith(
        "kvlab: interrupted: 1 of 3 runs are finished and stay; take it up with: kvlab sweep --resume out\n"
    )
    assert not Path(f"/proc/{child}").exists(), "the run went on"
    assert json.loads(Path("out/seed=1/result.json").read_text())["status"] == "ok"
    assert sorted(path.name for path in config.parent.iterdir()) == ["config.json", "log.txt", "overrides.json"]


def test_a_run_ends_with_its_parent() -> None:
    """A run that outlived a killed sweep would have disturbed the timings of the next."""
    stub = Path(__file__).with_name("stub_job.py")
    command = [sys.executable, "-c", INTERRUPTED, str(stub), *SWEEP, f"seed={HANGS}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    until(lambda: Path("out/log.txt").exists())
    (child,) = children(process.pid)
    process.kill()
    process.wait()
    until(lambda: not running(child))
    assert not Path("out/run/result.json").exists()


def until(condition: object, seconds: float = 20) -> None:
    assert callable(condition)
    stop = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < stop
        time.sleep(0.02)


def children(parent: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def running(process: int) -> bool:
    """A zombie that nobody waits for has ended, too."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
