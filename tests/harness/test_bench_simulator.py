"""`kvlab bench simulator`: a table, a figure and a line of JSON, from runs in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvlab.harness.cli import main


def test_it_measures_as_many_requests_as_it_is_told(tmp_path, capsys):
    out = tmp_path / "simulator.md"
    assert main(["bench", "simulator", "requests=40,80", "--repeats", "1", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    found = json.loads(text.strip().splitlines()[-1])
    assert [row["requests"] for row in found["rows"]] == [40, 80]
    assert all(row["peak_bytes"] > 2**20 and row["requests_per_cpu_s"] > 0 for row in found["rows"])
    assert out.read_text().startswith("# `kvlab bench simulator`")
    assert out.with_suffix(".png").stat().st_size > 1000


@pytest.mark.skipif(sys.platform != "linux", reason="the signal is Linux's")
def test_a_killed_bench_takes_its_run_with_it(tmp_path):
    """The process of the run lived on, and its folder stayed where no one looked."""
    command = [sys.executable, "-m", "kvlab.harness.cli", "bench", "simulator", "requests=1000000", "--repeats", "1"]
    bench = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | {"TMPDIR": str(tmp_path)})
    children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
    while not any(tmp_path.glob("*/requests.csv")):  # written by the run, so it has begun
        assert bench.poll() is None
        time.sleep(0.05)
    (child,) = children.read_text().split()
    bench.kill()
    bench.wait()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}/stat").exists() and ") Z" not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline, "the run goes on"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["requests=0"], "requests=0: allowed are"),
        (["executor=real"], "executor=real: allowed here is executor=simulated"),
        (["workload.num_requests=5"], "workload.num_requests=5: allowed here is requests=5"),
        (["--out", "table.png"], "--out table.png: allowed is the name of the table"),
        (["requests=3", "workload.prompt_len=5000"], "kvlab: every request is longer than max_len=2,048"),
        (["requests=3", "pool_bytes=512KiB"], "kvlab: no request fits: "),
        (
            [
                "requests=99",
                "workload=uniform",
                "workload.prompt_len={min:9,max:4000}",
                "workload.output_len={min:2,max:9}",
            ],
            "of 99 requests were served, and the others take no time",
        ),
        (["requests=3", "workload.rate=nan"], "kvlab: workload.rate=nan: allowed is a number above 0"),
    ],
)
def test_wrong_words_are_one_line(words, line, capsys):
    """A run of which every request was refused ended in a division by zero, a wrong value in the name of a class;
    what was asked for by another name was overruled in silence."""
    assert main(["bench", "simulator", *words]) == 2
    assert line in capsys.readouterr().err
