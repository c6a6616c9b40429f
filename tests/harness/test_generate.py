"""`kvlab generate`, its front end: what reaches the model, and what the person sees."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from kvlab.harness.cli import main

RESULT = {"capacity": "pool 8 tokens", "output_tokens": 2, "tokens_per_s": 4.0}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def generate(
        config: dict[str, Any], prompt: str, max_tokens: int, temperature: float, emit: Callable[[str], None]
    ) -> dict[str, Any]:
        calls.append((config["strategy"]["name"], prompt, max_tokens, temperature))
        emit("It is")
        emit(" so.")
        return RESULT

    monkeypatch.setattr("kvlab.generate.generate", generate)
    return calls


def test_text_comes_out_alone_and_counts_beside_it(
    calls: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--prompt", "Is it?", "--max-tokens", "2", "strategy=contiguous", "block_size=8"]) == 0
    said = capsys.readouterr()
    assert said.out == "It is so.\n"
    assert said.err == "contiguous has no block_size: block_size=8 is ignored\npool 8 tokens\n2 tokens, 4.0/s\n"
    assert calls == [("contiguous", "Is it?", 2, 0.0)]


def test_json_is_one_object(calls: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", "Is it?", "--temperature", "0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**RESULT, "text": "It is so."}
    assert calls[0][2:] == (128, 0.5)


def test_the_temperature_may_be_an_override(calls: list[tuple[Any, ...]]) -> None:
    """`kvlab generate --help` names engine.temperature, which had no effect."""
    assert main(["generate", "--prompt", "Is it?", "engine.temperature=0.7"]) == 0
    assert calls[0][3] == 0.7


def test_a_prompt_may_come_from_a_pipe(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a file"))
    assert main(["generate", "--prompt", "-"]) == 0
    assert calls[0][1] == "from a file"
