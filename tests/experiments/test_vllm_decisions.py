"""kvlab's prefix caching decides as vLLM's manager did when experiments/vllm_decisions.py recorded it."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
ON, OFF = (EXPERIMENTS / "data" / f"vllm_caching_{word}.jsonl" for word in ("on", "off"))


@pytest.fixture(scope="module")
def decisions():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXPERIMENTS)
        yield importlib.import_module("vllm_decisions")


@pytest.fixture(scope="module")
def nodes(decisions):
    return decisions.nodes()


def test_every_decision_of_prefix_is_vllms(decisions, nodes):
    """Grants, hits, free blocks, evictions and block ids in order. A refill put evicted blocks before free ones."""
    comparison = decisions.compare(decisions.recorded(ON, nodes["prefix_vllm"]), ids=True)
    assert (comparison.first, comparison.differ) == ("", Counter())
    assert comparison.seen["steps"] > 200
    assert comparison.seen["hit"] > 5000
    assert comparison.seen["evicted"] > 200
    assert comparison.seen["preempt"] > 20
    assert comparison.compared["blocks"] > 2000


def test_paged_has_as_many_free_blocks_as_vllm_without_caching(decisions, nodes):
    comparison = decisions.compare(decisions.recorded(OFF, nodes["paged"]), ids=False)
    assert (comparison.first, comparison.differ) == ("", Counter())
    assert comparison.seen["preempt"] > 20
    assert (comparison.seen["evicted"], comparison.compared["blocks"]) == (0, 0)


@pytest.mark.parametrize("other", [{"one_queue": True}, {"duplicates": "dedupe"}, {"null_block": False}])
def test_another_setting_is_told_apart(decisions, nodes, other):
    comparison = decisions.compare(decisions.recorded(ON, nodes["prefix_vllm"] | other), ids=True)
    assert comparison.first.startswith("step ")
    assert not comparison.equal


def test_an_environment_without_vllm_is_one_line(decisions, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["vllm_decisions.py", "--python", sys.executable])
    with pytest.raises(SystemExit) as ended:
        decisions.main()
    assert str(ended.value).startswith(f"--python {sys.executable}: no vLLM that runs (ModuleNotFoundError")
    monkeypatch.setattr(sys, "argv", ["vllm_decisions.py", "--python", "nowhere/python"])
    with pytest.raises(SystemExit, match="nowhere/python: cannot be started"):
        decisions.main()
