"""A whole run on a device: what its result says, and the lines for people."""

from __future__ import annotations

import json

import pytest
import torch

from kvlab.engine.capacity import pool_bytes
from kvlab.model.load import shape_of
from kvlab.run import execute

FIXED = {"name": "fixed", "num_requests": 2, "prompt_len": 4, "output_len": 3}


@pytest.fixture
def run(config, new_platform, tmp_path):
    """run(strategy, ...): its result, and the lines."""

    def go(strategy, **changes):
        lines = []
        cfg = config(strategy, workload=FIXED, **changes)
        result = execute(cfg, tmp_path, lines.append, platform=new_platform())
        json.dumps(result)
        return result, lines

    return go


def test_a_result_says_on_which_device_and_how(run):
    result, lines = run("paged")
    told = result["device_info"]
    assert (result["status"], result["device"], result["kernel"]) == ("ok", "cuda", "triton; rows and blocks in place")
    assert result["num_output_tokens"] == 6
    assert told["name"]
    assert told["cuda_graphs"] is True
    assert (told["graphs"], told["graph_replays"]) == (3, 2), "buckets of 1, 2 and 4; the prompts are not recorded"
    assert told["table_entries_sent"] == 4
    assert min(result["device_model_us_per_step"], result["model_us_per_step"]) > 0
    assert {f"device_{part}_us_per_step" for part in ("moves", "view", "sample")} <= set(result)
    assert not any("graphs" in line for line in lines)


def test_graphs_that_are_off_are_said_to_be(run):
    result, lines = run("contiguous", cuda_graphs=False)
    assert "CUDA graphs are off: engine.cuda_graphs=false" in lines
    assert (result["device_info"]["cuda_graphs"], result["device_info"]["graph_replays"]) == (False, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device's whole memory is not for a test")
def test_without_a_size_the_pool_is_a_share_of_the_memory(config, tmp_path):
    from kvlab.engine.cuda.standin import Standin

    cfg = config("paged", workload=FIXED, pool_bytes=None, cuda_graphs=False)
    result = execute(cfg, tmp_path, platform=Standin(200 << 20))
    assert result["capacity"]["pool_bytes"] == pool_bytes(cfg, shape_of(cfg["model"]), 200 << 20) > 10 << 20
    assert result["num_finished"] == 2
