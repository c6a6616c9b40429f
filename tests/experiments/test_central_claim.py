"""The central claim's script, on a model small enough for a test: a page, and a line of JSON that bears it out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments/central_claim.py"


@pytest.mark.slow
def test_equal_bytes_hold_more_requests_without_reservations(tmp_path):
    out = tmp_path / "claim.md"
    words = ["model=tiny", "dtype=float32", "engine.threads=1", "max_len=1500", "pool_bytes=4MiB"]
    command = [sys.executable, str(SCRIPT), *words, "--repeats", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = {row["strategy"]: row for row in json.loads(done.stdout.strip().splitlines()[-1])["rows"]}
    assert list(rows) == ["contiguous", "paged", "vattention"]
    assert all(len(row["alone_tokens_per_s"]) == len(row["together_tokens_per_s"]) == 2 for row in rows.values())
    reserved = rows["contiguous"]["mean_batch_requests"]
    assert min(rows["paged"]["mean_batch_requests"], rows["vattention"]["mean_batch_requests"]) > 2 * reserved
    assert len({tuple(row["digests"]) for row in rows.values()}) == 1
    text = out.read_text()
    assert "all strategies' outputs are the same" in text
    assert "| contiguous |" in text
    runs = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    assert [row["round"] for row in runs] == [1] * 6 + [2] * 6
    assert {row["strategy"] for row in runs} == set(rows)
    assert done.stderr.count("round 2 of 2, together, ") == 3, "progress"


@pytest.mark.slow
def test_what_is_stopped_leaves_its_runs_and_the_page_of_whole_rounds(tmp_path):
    """Nothing was written, or said, before the last of thirty runs: six minutes were lost to a Ctrl-C."""
    out = tmp_path / "claim.md"
    words = ["model=tiny", "dtype=float32", "engine.threads=1", "max_len=1500", "pool_bytes=4MiB"]
    command = [sys.executable, str(SCRIPT), *words, "--repeats", "99", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("round 2 of 99, alone, paged"):
                break
        process.terminate()
        printed, errors = process.communicate()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted"
    assert not printed
    assert "of 1 rounds" in out.read_text()
    assert len(out.with_suffix(".jsonl").read_text().splitlines()) >= 7
