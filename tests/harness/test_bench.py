"""`kvlab bench bookkeeping`: what it measures, apart from how long it takes."""

from __future__ import annotations

import json

import pytest

from kvlab.bench.bookkeeping import measure
from kvlab.harness.cli import main
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.paged import Paged
from kvlab.strategy import Memory

SMALL = ("--sequences", "4", "--steps", "16", "--repeats", "1")


@pytest.fixture
def memory():
    return Memory(bytes=2 * 4 * 64 * 8, token_bytes=8, max_len=64, max_seqs=4, chunk=64)


def test_a_sequence_is_asked_for_once_a_block(memory):
    assert measure(lambda: Paged(memory, 8), steps=16, repeats=1).asked == 1 / 8
    assert measure(lambda: Paged(memory, 1), steps=16, repeats=1).asked == 1
    assert measure(lambda: Contiguous(memory), steps=16, repeats=1).asked == 0


def test_steps_in_which_nobody_asks_call_nothing_for_a_sequence(memory):
    """But the moves are asked for, once a step."""
    calls = []

    class Counting(Paged):
        def extend(self, seq, length, upto):
            calls.append("extend")
            return super().extend(seq, length, upto)

        def drain(self):
            calls.append("drain")
            return super().drain()

    cost = measure(lambda: Counting(memory, 32), steps=16, repeats=1)
    assert cost.quiet_ns is not None
    serves, steps = 3, 16 + 4 + 1  # of uneven, even, and always asking sequences; timed, warm-up, prefill
    assert calls.count("drain") == serves * steps
    assert calls.count("extend") <= 4 * (2 * 2 + steps)


def test_where_everybody_always_asks_no_step_is_quiet(memory):
    assert measure(lambda: Paged(memory, 1), steps=8, repeats=1).quiet_ns is None


def test_settings_and_facts_as_json(capsys):
    assert main(["bench", "bookkeeping", "--only", "paged,growing_exact", *SMALL, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [(row["strategy"], row["block_size"]) for row in printed["rows"]] == [
        ("paged", 1),
        ("paged", 16),
        ("paged", 128),
        ("growing_exact", None),
    ]
    assert all(row["strategy_ns"]["low"] <= row["step_ns"]["high"] for row in printed["rows"])
    assert (
        printed["command"] == "kvlab bench bookkeeping --only paged,growing_exact --sequences 4 --steps 16 --repeats 1"
    )


def test_the_table_goes_to_a_file_too(capsys, tmp_path):
    out = tmp_path / "table.md"
    assert main(["bench", "bookkeeping", "--only", "contiguous", *SMALL, "--out", str(out)]) == 0
    assert out.read_text() in capsys.readouterr().out
    assert "| contiguous |" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["kernel"], "'kernel': nothing of that name to measure; allowed is bookkeeping"),
        (["bookkeeping", "--only", "pagd"], "--only pagd: no such strategy; allowed is"),
        (["bookkeeping", "--steps", "0"], "--steps 0: allowed is a whole number, 1 or more"),
        (["bookkeeping", "--steps", "513"], "--steps 513: allowed is 512 or less"),
    ],
)
def test_wrong_use_is_one_line(capsys, arguments, reason):
    assert main(["bench", *arguments]) == 2
    assert reason in capsys.readouterr().err
