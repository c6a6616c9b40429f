"""How the scripts of experiments/ end, and what they take."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvlab.errors import UsageError

FOLDER = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("script")


def raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("work", "status", "line"),
    [
        (lambda: None, 0, ""),
        (raising(UsageError("that is wrong")), 2, "that is wrong\n"),
        (raising(KeyboardInterrupt), 130, "interrupted\n"),
    ],
)
def test_it_ends_as_kvlab_does(script, work, status, line, monkeypatch, capsys):
    monkeypatch.setattr(script.signal, "signal", lambda *_: None)  # the test's own process keeps its handler
    with pytest.raises(SystemExit) as ended:
        script.told(work)
    assert ended.value.code == status
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "", "٣"])
def test_counts_are_whole_numbers(script, text):
    """0 repeats ended in the traceback of a median of nothing, after the model was loaded."""
    with pytest.raises(argparse.ArgumentTypeError, match="a whole number, 1 or more"):
        script.whole_number(text)
    assert script.whole_number("12") == 12


@pytest.mark.slow
def test_the_page_of_kernels_says_how_it_was_made(tmp_path):
    """It named a command without its options, and wrote into a folder that was not there only after minutes."""
    command = [sys.executable, str(FOLDER / "cpu_kernels.py"), "--repeats", "1", "--shapes", "1", "--out"]
    wrong = subprocess.run([*command, str(tmp_path / "none" / "page")], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines() == [f"{tmp_path}/none/page.md: cannot write there: No such file or directory"]
    done = subprocess.run([*command, str(tmp_path / "page")], capture_output=True, text=True, check=True)
    record = json.loads(done.stdout.splitlines()[-1])
    assert record == json.loads((tmp_path / "page.json").read_text())
    assert "--repeats 1 --shapes 1" in record["command"]
    assert record["command"] in (tmp_path / "page.md").read_text()
    assert {row["op"] for row in record["rows"]} == {"read", "copy memory", "decode"}
