"""`kvlab bench bookkeeping`: what it measures, apart from how long it takes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvlab.bench.bookkeeping import measure
from kvlab.bench.trace import Lengths, lengths, replay, tell
from kvlab.harness import bench_bookkeeping
from kvlab.harness.cli import main
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.paged import Paged
from kvlab.strategies.prefix import Prefix
from kvlab.strategy import Memory

SMALL = ("--sequences", "4", "--steps", "16", "--requests", "20", "--repeats", "1")


@pytest.fixture
def few(monkeypatch):
    """Costs by size, of sizes that take no time."""
    for name, value in (("POOLS", (1_024, 2_048)), ("RUNNING", (16, 32)), ("POOL_OF_RUNNING", 2_048)):
        monkeypatch.setattr(bench_bookkeeping, name, value)


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


def test_settings_and_facts_as_json(capsys, few):
    assert main(["bench", "bookkeeping", "--only", "paged,growing_exact", *SMALL, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [(row["strategy"], row["block_size"]) for row in printed["rows"]] == [
        ("paged", 1),
        ("paged", 16),
        ("paged", 128),
        ("growing_exact", None),
    ]
    assert all(row["strategy_ns"]["low"] <= row["step_ns"]["high"] for row in printed["rows"])
    assert [row["strategy"] for row in printed["trace"]] == ["paged", "growing_exact"]
    sizes = [(row["blocks"], row["sequences"]) for row in printed["sizes"]]
    assert sizes == [(1_024, 16), (2_048, 16), (2_048, 32)]
    options = "--sequences 4 --steps 16 --requests 20 --repeats 1"
    assert printed["command"] == f"kvlab bench bookkeeping --only paged,growing_exact {options}"


def test_the_last_line_is_the_whole_in_json(capsys):
    assert main(["bench", "bookkeeping", "--only", "token_pool", *SMALL]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["requests"] == 20
    assert printed["rows"][0]["strategy_ns"]["median"] > 0


def test_a_figure_lies_beside_the_table(capsys, few, tmp_path):
    out = tmp_path / "table.md"
    assert main(["bench", "bookkeeping", "--only", "paged", *SMALL, "--out", str(out)]) == 0
    assert "(table.svg)" in out.read_text()
    assert "<svg" in out.with_suffix(".svg").read_text()


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


def test_the_trace_is_the_one_whose_figures_are_published():
    """10,000 requests, as vLLM's manager was given them: 1,376,709 output tokens."""
    assert lengths(10_000).output.sum() == 1_376_709


def test_a_trace_takes_a_token_for_every_output_and_no_more_room_than_asked_for(memory):
    known = Lengths(np.array([9, 16, 3]), np.array([8, 1, 20]))
    told = tell(Paged(memory, 8), known)
    assert (told.steps, told.output_tokens) == (20, 29)  # all fit at once, the longest output decides
    assert told.most_tokens == 8 * (2 + 2)  # of the first and the last, in the first one's last step
    assert 0 < told.strategy_ns < told.step_ns


def test_only_so_many_run_as_the_memory_says():
    one = Memory(bytes=64 * 8, token_bytes=8, max_len=64, max_seqs=1, chunk=64)
    assert tell(Paged(one, 8), Lengths(np.array([4, 4]), np.array([5, 7]))).steps == 5 + 7


def test_a_cache_publishes_during_a_trace(memory):
    made = []

    def make():
        made.append(Prefix(memory, 8))
        return made[-1]

    total = replay(make, Lengths(np.array([9, 17]), np.array([16, 16])), repeats=2)
    assert len(made) == 2
    assert sum(made[0].published) == 3 + 4  # full blocks of 24 and 32 stored tokens
    assert total.step_ns.low > total.strategy_ns.low
