"""`kvlab bench engine`: tables and a line of JSON, from a model small enough for a test."""

from __future__ import annotations

import json

import pytest

from kvlab.harness.cli import main

TINY = ["model=tiny", "dtype=float32", "max_len=256", "pool_bytes=8MiB", "engine.threads=1"]


def test_it_measures_batches_and_a_workload(tmp_path, capsys):
    out = tmp_path / "engine.md"
    small = ["workload=uniform", "workload.prompt_len={min:3,max:9}", "workload.output_len={min:2,max:5}"]
    words = ["batches=1,3", "prompt=20", "output=7", "parts=batches,workload", "workload.num_requests=5"]
    assert main(["bench", "engine", *TINY, *small, *words, "--repeats", "1", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    found = json.loads(text.strip().splitlines()[-1])
    assert [row["batch"] for row in found["batches"]] == [1, 3]
    for row in found["batches"]:
        assert row["decode_tokens_per_s_spread"][0] <= row["decode_tokens_per_s_median"]
        assert row["decode_tokens_per_s_median"] == pytest.approx(row["batch"] / row["step_ms_median"] * 1e3)
        parts = row["step_parts_us_median"]
        assert parts["attention"] > 0 < parts["layers"]
        assert sum(parts.values()) == pytest.approx(row["step_ms_median"] * 1e3)
    served = found["workload"]
    assert 10 <= served["output_tokens"] <= 25
    assert len(served["output_digests"]) == 1
    assert served["pool_bytes"] <= 8 * 2**20 < served["peak_resident_beside_pool_bytes"]
    assert "start" not in found
    assert out.read_text().startswith("# `kvlab bench engine`")
    assert found["command"] in out.read_text()


@pytest.mark.slow
def test_it_starts_a_process(capsys):
    """SmolLM2 is what speaks: nothing smaller has a tokenizer."""
    assert main(["bench", "engine", "parts=start", "engine.threads=1", "--repeats", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["batches"] == []
    assert 0.5 < found["start"]["first_output_s_median"] < 300


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["batches=0"], "batches=0: allowed is whole numbers"),
        (["prompt=1,2"], "prompt=1,2: allowed is a whole number"),
        (["output=x"], "output=x: allowed is a whole number"),
        (["output=1"], "output=1: allowed is a whole number, 2 or more"),
        (["parts=batch"], "parts=batch: allowed is batches, workload, start"),
        (["executor=simulated"], "allowed are executor=real and device=cpu"),
        (["batchs=3"], "batchs"),
    ],
)
def test_wrong_words_are_one_line(words, line, capsys):
    assert main(["bench", "engine", *words]) == 2
    captured = capsys.readouterr()
    assert line in captured.err
    assert len(captured.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["batches=3", "output=300"], "3 of 3 requests are longer than max_len=256"),
        (["batches=4", "pool_bytes=32KiB"], "4 of 4 requests were not served"),
        (["batches=4", "pool_bytes=256KiB", "output=100"], "not all ran together from the first step to the last"),
        (["batches=4", "engine.token_budget=64"], "not all ran together from the first step to the last"),
        (["parts=workload", "workload=fixed", "workload.prompt_len=300"], "are longer than max_len=256"),
        (["parts=workload", "workload=fixed", "workload.prompt_len=9", "workload.output_len=9", "pool_bytes=8KiB"],
         "64 of 64 requests were not served"),
    ],
)  # fmt: skip
def test_what_was_not_done_is_not_timed(words, line, capsys):
    """Requests that were refused took no time: the table said eleven billion tokens a second. And a batch of which
    half waited for the other half, or an answer of one token, was told as one that decoded together."""
    assert main(["bench", "engine", *TINY, "parts=batches", "--repeats", "1", *words]) == 2
    captured = capsys.readouterr()
    assert line in captured.err
    assert not captured.out
