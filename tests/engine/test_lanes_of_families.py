"""Requests of several sequences where lanes are few: each gets as many as it will have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvlab.strategies.paged import Paged


@pytest.mark.parametrize("several", [{"beams": 4}, {"n": 4}], ids=["beams", "samples"])
def test_a_request_starts_only_where_all_of_its_sequences_will_have_lanes(memory, requests, serve, several) -> None:
    """Eight searches took the eight lanes, one each; their beams found none, and searches gave way over and over."""
    strategy = Paged(memory(4000, max_seqs=8, max_len=40), 4)
    engine = serve(strategy, [replace(one, **several) for one in requests(8, 40)])
    assert engine.scheduler.tally.preemptions == engine.scheduler.tally.idle == 0
    assert {one.outcome for one in engine.scheduler.tally.ended} == {"finished"}
