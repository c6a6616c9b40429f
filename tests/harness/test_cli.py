"""The command line: what it imports, what it says, and that mistakes are one line and status 2."""

from __future__ import annotations

import errno
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvlab.harness import cli, doctor, verbs

STRATEGIES = ", ".join(sorted(path.stem for path in Path(cli.__file__).parents[1].glob("conf/strategy/*.yaml")))
HEAVY = ("torch", "hydra", "omegaconf", "wandb", "matplotlib", "rich", "transformers")


@pytest.mark.parametrize("arguments", [["--help"], ["strategies"], ["strategies", "--json"], ["sweep", "--help"]])
def test_quick_verbs_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from kvlab.harness.cli import main; status = main(sys.argv[1:]);"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_help_names_every_verb_and_override(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {verb.name}" in text for verb in verbs.VERBS)
    assert all(name in text for name in ("block_size", "pool_bytes", "workload.num_requests", "hydra.sweep.dir"))


@pytest.mark.parametrize("verb", [verb.name for verb in verbs.VERBS])
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    assert f"  kvlab {verb}" in capsys.readouterr().out


def test_nothing_to_do_prints_the_usage_and_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert capsys.readouterr().out.startswith("usage: kvlab VERB")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvlab ")


def wrong(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said of arguments that must be refused, in one line and before anything is written."""
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("kvlab: ")
    assert not list(Path().iterdir())
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["foo"], "'foo' is no verb; allowed is run, sweep"),
        (["run", "--frob"], "--frob"),
        (["fetch", "weights"], "invalid choice: 'weights'"),
        (["sweep", "--jobs", "0"], "--jobs 0: allowed is"),
        (["sweep", "--jobs", "two"], "invalid int value: 'two'"),
        (["sweep", "--resume", "nowhere"], "nowhere: no sweep.json there"),
        (["generate"], "--prompt"),
        (["generate", "--prompt", "a", "--max-tokens", "0"], "--max-tokens 0: allowed is"),
        (["generate", "--prompt", "a", "--temperature", "-1"], "--temperature -1.0: allowed is"),
        (["generate", "--prompt", ""], "--prompt is empty"),
        (["run", "strategy=pagd"], f"strategy=pagd: allowed is {STRATEGIES}"),
        (["run", "block_size=8,16"], "block_size=8,16: several values are for `kvlab sweep`"),
        (["sweep", "strategy=paged,pagd"], f"strategy=pagd: allowed is {STRATEGIES}"),
        (["sweep", "seed=interval(0,1)"], "allowed is a,b,c or range()"),
        (["sweep", "tracking=none,wandb"], "the same for a whole sweep"),
        (["sweep", "pool_blocks=64", "block_size=8,16"], "give pool_bytes instead"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in wrong(capsys, *arguments)


def test_an_unwritable_directory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/proc/kvlab: cannot write there" in wrong(capsys, "run", "hydra.run.dir=/proc/kvlab")
    said = "/proc/kvlab: cannot write there"
    assert cli.main(["sweep", "seed=0,1", "hydra.sweep.dir=/proc/kvlab"]) == 2
    assert said in capsys.readouterr().err


def test_a_closed_pipe_is_no_traceback() -> None:
    code = "import sys; from kvlab.harness.cli import main; sys.exit(main(['strategies', '--json']))"
    command = f'{sys.executable} -c "{code}" | true'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(("arguments", "status"), [("--version >&-", 0), ("nonsense 2>&-", 2)])
def test_a_closed_output_is_no_traceback(arguments: str, status: int) -> None:
    """With standard output closed the command died; with standard error closed its notes went into the output."""
    line = f"{shlex.quote(sys.executable)} -m kvlab.harness.cli {arguments}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It was a traceback, and a sweep ended with it."""

    def full(_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "out/sweep.json")

    monkeypatch.setattr(doctor, "run", full)
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == "kvlab: out/sweep.json: No space left on device\n"


def test_being_told_to_end_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvlab.harness.strategies.run", lambda args: signal.raise_signal(signal.SIGTERM))
    assert cli.main(["strategies"]) == 130
    assert capsys.readouterr().err == "kvlab: interrupted\n"


def test_strategies_say_what_they_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["strategies", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["paged"]["knobs"] == ["block_size"]
    assert rows["paged"]["geometry"] == "blocks"
    assert rows["vattention"]["knobs"] == ["page_group_bytes", "strategy.page_layout"]
    assert (rows["vattention"]["virtual"], rows["contiguous"]["virtual"]) == (True, False)
    assert rows["contiguous"]["knobs"] == []
    assert len({row["what"] for row in rows.values()}) == len(rows)  # those of one class said the same
    assert rows["paged"]["what"].startswith("Blocks on demand")


def test_doctor_finds_the_essentials(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["virtual memory"]["ok"]
    assert found["torch"]["ok"]
    assert "offline" in found["W&B"]["text"]


def test_doctor_fails_without_an_essential(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("kvlab.memory.host_vmm.PhysicalPool", None)
    assert cli.main(["doctor"]) == 1
    assert "no  virtual memory" in capsys.readouterr().out
