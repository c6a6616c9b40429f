"""Workloads that a function of another package makes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvlab.errors import UsageError
from kvlab.request import Request
from kvlab.workload.make import Workload, describe, make

EXAMPLE = Path(__file__).parents[2] / "examples" / "arena" / "src"
FEW_SHOT = {
    "name": "few_shot", "_target_": "arena.workload.make", "tasks": 2, "examples_len": 30, "question_len": 6,
    "answer_len": 9, "num_requests": 8,
}  # fmt: skip


def made_by(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Workload:
    """The workload of a node whose _target_ is this function."""
    monkeypatch.setattr(sys.modules[__name__], "maker", function, raising=False)
    monkeypatch.setitem(sys.modules, "a_package", sys.modules[__name__])
    return make({"name": "mine", "_target_": "a_package.maker"}, seed=1, max_len=64, vocab=100)


def test_the_example_s_prompts_begin_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    workload = make(FEW_SHOT, seed=3, max_len=64, vocab=100)
    again = make(FEW_SHOT, seed=3, max_len=64, vocab=100)
    prompts = [request.prompt for request in workload.requests]
    assert len({tuple(prompt[:30]) for prompt in prompts}) == 2
    assert len({tuple(prompt) for prompt in prompts}) == 8
    assert all(map(np.array_equal, prompts, [request.prompt for request in again.requests]))
    assert {request.limit for request in workload.requests} == {45}
    assert workload.info["num_requests"] == 8
    assert workload.info["prompt_tokens"]["mean"] == 36
    assert describe(workload).startswith("few_shot (synthetic: 2 tasks with 30 tokens of examples each): 8 requests")
    assert make(FEW_SHOT, seed=3, max_len=64, vocab=None).requests[0].prompt is None
    with pytest.raises(UsageError, match="45 tokens; allowed is max_len=40"):
        make(FEW_SHOT, seed=3, max_len=40, vocab=100)


def test_what_it_says_of_itself_goes_before_what_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [Request(0, 4, 2, 8), Request(1, 4, None, 8, arrival_s=0.5)]
    info = made_by(lambda config, **given: Workload(requests, [], {"synthetic": False}), monkeypatch).info
    assert (info["name"], info["source"], info["synthetic"]) == ("mine", "a_package.maker", False)
    assert info["arrivals"] == "file"


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([Request(1, 4, 2, 8), Request(0, 4, 2, 8)], "request 0 breaks the rule: ids rise"),
        ([Request(0, 4, 2, 8, 1.0), Request(1, 4, 2, 8)], "request 1 breaks the rule: arrivals rise"),
        ([Request(0, 4, 0, 8)], "prompt_len and output_len are 1 or more"),
        ([Request(0, 4, 5, 8)], "prompt_len + output_len <= limit <= max_len=64"),
        ([Request(0, 4, 5, 65)], "prompt_len + output_len <= limit <= max_len=64"),
        ([Request(0, 4, 2, 8, prompt=np.zeros(3, np.int32))], "prompt holds prompt_len ids"),
    ],
)
def test_requests_that_no_engine_could_serve(
    requests: list[Request], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="workload._target_=a_package.maker: ") as caught:
        made_by(lambda config, **given: Workload(requests, [], {}), monkeypatch)
    assert said in str(caught.value)


def test_something_else_than_a_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="gave list; allowed is a Workload"):
        made_by(lambda config, **given: [], monkeypatch)
