"""`kvlab run`, with a stub in place of the engine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvlab.harness import rundir
from kvlab.harness.cli import main
from kvlab.harness.summary import summary

pytestmark = pytest.mark.usefixtures("stub")
REFUSED, WRONG, FAILS, KILLED = 91, 92, 93, 94


def test_a_run_says_what_it_did(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hydra.run.dir=out"]) == 0
    said = capfd.readouterr()
    assert "pool 1,024 blocks x 16 = 16,384 tokens\na library prints this\n" in said.err
    assert "tokens/s" in said.out
    assert "123.5" in said.out
    assert "result: out/result.json" in said.out
    assert json.loads(Path("out/overrides.json").read_text()) == ["hydra.run.dir=out"]
    assert not list(Path().rglob("wandb"))


def test_json_is_the_result_file(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json", "hydra.run.dir=out", "seed=4"]) == 0
    assert json.loads(capfd.readouterr().out) == json.loads(Path("out/result.json").read_text())


def test_every_run_has_a_directory_of_its_own() -> None:
    assert main(["run"]) == main(["run"]) == 0
    assert len(list(Path("outputs").glob("*/*/result.json"))) == 2


def test_an_ignored_knob_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "strategy=contiguous", "block_size=32"]) == 0
    assert "contiguous has no block_size: block_size=32 is ignored" in capfd.readouterr().err


def test_a_finished_run_is_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hydra.run.dir=out"]) == 0
    before = Path("out/result.json").read_bytes()
    assert main(["run", "hydra.run.dir=out"]) == 0
    assert "finished earlier and not repeated: out" in capfd.readouterr().err
    assert Path("out/result.json").read_bytes() == before


def test_another_run_in_the_same_directory_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hydra.run.dir=out"]) == 0
    assert main(["run", "hydra.run.dir=out", "seed=1"]) == 2
    assert "out: holds another run, which differs in seed" in capfd.readouterr().err
    assert json.loads(Path("out/config.json").read_text())["seed"] == 0


def test_two_runs_do_not_share_a_directory(capfd: pytest.CaptureFixture[str]) -> None:
    """The second one removed what the first was writing, and both called it theirs."""
    with rundir.claimed(Path("out")):
        assert main(["run", "hydra.run.dir=out"]) == 2
    assert "out: another run is under way there" in capfd.readouterr().err
    assert main(["run", "hydra.run.dir=out"]) == 0


def test_a_corrected_command_may_use_the_directory_of_the_one_that_failed() -> None:
    """A wrong value had claimed the directory for good; what it left would look like the next run's."""
    assert main(["run", "hydra.run.dir=out", f"seed={FAILS}"]) == 1
    Path("out/outputs.jsonl").write_text("{}")
    assert main(["run", "hydra.run.dir=out", "seed=1"]) == 0
    assert json.loads(Path("out/config.json").read_text())["seed"] == 1
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "config.json", "overrides.json", "result.json", "steps.csv",
    ]  # fmt: skip


def test_a_wrong_mode_of_tracking_is_said_before_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    """It was said when the run was over."""
    assert main(["run", "hydra.run.dir=out", "tracking=wandb", "tracking.mode=on"]) == 2
    assert capfd.readouterr().err == "kvlab: tracking.mode=on: allowed is online, offline, dryrun, disabled\n"
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("seed", "status", "result", "said"),
    [
        (REFUSED, 2, "refused", "kvlab: refused: no request fits\n"),
        (WRONG, 2, "failed", "kvlab: workload.path=/nowhere: no such file\n"),
        (FAILS, 1, "failed", "kvlab: failed: RuntimeError: two lines (see out/error.txt)\n"),
        (KILLED, 1, "failed", "killed by SIGKILL: out of memory? (see out/error.txt)\n"),
    ],
)
def test_bad_ends(seed: int, status: int, result: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hydra.run.dir=out", f"seed={seed}"]) == status
    assert capfd.readouterr().err.endswith(said)
    assert json.loads(Path("out/result.json").read_text())["status"] == result


INTERRUPTED = """
import sys
from kvlab.harness import child, validate
from kvlab.harness.cli import main
child.COMMAND = (sys.executable, sys.argv[1])
validate.rehearse = lambda configs: None
sys.exit(main(["run", "hydra.run.dir=out", "seed=95"]))
"""


def test_ctrl_c_says_how_to_start_again() -> None:
    stub = Path(__file__).with_name("stub_job.py")
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(stub)], stderr=subprocess.PIPE, text=True)
    stop = time.monotonic() + 20
    while not Path("log.txt").exists() and time.monotonic() < stop:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said.endswith(
        "kvlab: interrupted, no result in out; the same command with hydra.run.dir=out starts it again\n"
    )
    assert list(Path("out").iterdir()) == []


def test_a_mean_batch_that_nothing_is_the_mean_of_is_a_dash_with_why() -> None:
    """Its line was missing."""
    assert summary({"mean_batch_size": None}) == "mean batch  -  (no step decoded)"
    later = {"mean_batch_size": None, "mean_batch_size.whole": 1.5, "tokens_per_s": None}
    assert summary(later) == "mean batch  -  (no step decoded while a request waited)"
