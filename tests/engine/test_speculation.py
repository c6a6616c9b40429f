"""Drafts change when tokens come, never which: what is refused is truncated, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvlab.engine.speculation import Speculation, read_tape
from kvlab.errors import UsageError


@pytest.fixture
def tape_of(serve, make_any, memory):
    """The outputs of a run without drafts, by sequence, and the tape that they make."""

    def make(requests):
        engine = serve(make_any(memory(1000)), requests)
        said = {one.id: (one.request.prompt_len, one.output.tolist()) for one in engine.scheduler.tally.ended}

        def token(id: int, position: int) -> int:
            prompt, output = said[id]
            return output[position - prompt] if position - prompt < len(output) else 0

        def tape(ids, positions):
            return np.array([token(*pair) for pair in zip(ids.tolist(), positions.tolist(), strict=True)])

        return said, tape

    return make


@pytest.mark.parametrize("chance", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("tokens", [90, 1000])
def test_outputs_are_those_without_drafts(
    make_any, memory, requests, serve, tape_of, chance: float, tokens: int
) -> None:
    made = [replace(request, n=1 + request.id % 2) for request in requests(8, 50, seed=2, gap_s=2.0)]
    said, tape = tape_of(made)
    engine = serve(make_any(memory(tokens)), made, speculation=Speculation(3, chance, 1, tape))
    ended, tally = engine.scheduler.tally.ended, engine.scheduler.tally
    assert {one.id: (one.request.prompt_len, one.output.tolist()) for one in ended} == said
    assert tally.drafted_tokens > 0
    assert tally.accepted_tokens == tally.drafted_tokens * chance if chance in (0.0, 1.0) else tally.accepted_tokens > 0


def test_right_drafts_save_steps(make_any, memory, requests, serve, tape_of) -> None:
    made = requests(4, 60, seed=4)
    _, tape = tape_of(made)
    steps = [
        len(serve(make_any(memory(1000)), made, speculation=Speculation(4, chance, 1, tape)).recorder.rows)
        for chance in (0.0, 1.0)
    ]
    assert steps[1] < steps[0] / 3


def test_a_tape_that_says_something_else_changes_nothing(make_any, memory, requests, serve, tape_of) -> None:
    made = requests(5, 40, seed=6)
    said, _ = tape_of(made)
    liar = Speculation(3, 1.0, 0, lambda ids, positions: np.full(len(ids), 7))
    engine = serve(make_any(memory(1000)), made, speculation=liar)
    assert {one.id: one.output.tolist() for one in engine.scheduler.tally.ended} == {
        id: output for id, (_, output) in said.items()
    }


def test_as_many_are_right_as_the_seed_says() -> None:
    speculation = Speculation(4, 0.7, 3, lambda ids, positions: ids)
    right = speculation.right(np.arange(20_000), np.arange(20_000) % 97)
    expected = sum(0.7**count for count in range(1, 5))
    assert right.mean() == pytest.approx(expected, abs=4 * right.std() / 20_000**0.5)
    assert np.array_equal(right[:100], speculation.right(np.arange(100), np.arange(100) % 97))


def test_a_tape_is_read_from_a_run(tmp_path: Path) -> None:
    (tmp_path / "outputs.jsonl").write_text('{"id": 2, "branch": 1, "tokens": [5, 6], "ties": []}\n')
    (tmp_path / "requests.csv").write_text("id,prompt_len\n2,10\n")
    tape = read_tape(tmp_path)
    sequence = 2 + (1 << 40)
    assert tape(np.array([sequence] * 3), np.array([10, 11, 12])).tolist() == [5, 6, 0]
    with pytest.raises(UsageError, match="engine.draft_tape=.*nowhere: allowed is the directory of a run"):
        read_tape(tmp_path / "nowhere")
