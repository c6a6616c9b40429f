"""Sequences go to the host's memory and come back on a device, and say what they would have said."""

from __future__ import annotations

import pytest
import torch

from kvlab.record.summary import output_digest

STANDIN = not torch.cuda.is_available()
SWAP = {"preemption": {"_target_": "kvlab.engine.axes.Swap"}, "host_bytes": 64 * 1024}  # 64 tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paged", "vattention", "radix"])
def test_the_same_tokens_with_swapping(name, serve, config, work):
    virtual = name == "vattention"
    requests = work(6 if virtual else 4, seed=2, longest=22 if virtual else 14)
    cfg = config(name, **SWAP, **({} if virtual and not STANDIN else {"pool_tokens": 48 if virtual else 36}))
    engine = serve(cfg, requests)
    tally = engine.scheduler.tally
    assert all(sequence.outcome == "finished" for sequence in tally.ended)
    assert output_digest(tally.ended) == output_digest(serve(cfg, requests, on_cpu=True).scheduler.tally.ended)
    if STANDIN or not virtual:  # pages of a device hold all
        assert tally.swapped_out_tokens > 0
    assert engine.strategy.host_held() == 0
