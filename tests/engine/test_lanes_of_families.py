"""Requests of several sequences where lanes or blocks are few: nobody comes in for whom the others must give way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvlab.harness.compose import compose
from kvlab.simulate import execute
from kvlab.strategies.paged import Paged


@pytest.mark.parametrize("several", [{"beams": 4}, {"n": 4}], ids=["beams", "samples"])
def test_a_request_starts_only_where_all_of_its_sequences_will_have_lanes(memory, requests, serve, several) -> None:
    """Eight searches took the eight lanes, one each; their beams found none, and searches gave way over and over."""
    strategy = Paged(memory(4000, max_seqs=8, max_len=40), 4)
    engine = serve(strategy, [replace(one, **several) for one in requests(8, 40)])
    assert engine.scheduler.tally.preemptions == engine.scheduler.tally.idle == 0
    assert {one.outcome for one in engine.scheduler.tally.ended} == {"finished"}


def test_a_sample_that_gave_way_does_not_come_back_to_give_way_again(tmp_path) -> None:
    """Two free blocks were enough to come back into a full pool: 730 preemptions of 120 sequences, until one failed."""
    serve = "executor=simulated gpu=a100_40 model=opt_13b dtype=bfloat16 max_len=2048 pool_blocks=400"
    work = "workload=sharegpt_sosp23 workload.num_requests=30 workload.n=4"
    result = execute(compose([*serve.split(), *work.split()]).config, tmp_path, lambda line: None, None)
    assert result["num_finished"] == 30
    assert 0 < result["num_preemptions"] < 3 * 120
