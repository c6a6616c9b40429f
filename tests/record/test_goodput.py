"""Goodput: the share of all requests of which every sequence finished within slo.ttft_s and slo.tpot_s."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kvlab.engine.columns import Ended
from kvlab.engine.sequence import Family, Sequence
from kvlab.engine.tally import Tally
from kvlab.record.goodput import Slo, served_well
from kvlab.record.outcomes import Outcomes
from kvlab.record.summary import work_metrics
from kvlab.request import Request

SLO = Slo(ttft_s=0.5, tpot_s=0.25)


def ended(id, first_s, last_s, output, outcome="finished", family=None, branch=0):
    """A sequence that came at second 8 (times are exact in binary)."""
    request = Request(id, 10, output, 100, 8.0)
    sequence = Sequence(request, 10 + output, first_token_s=8 + first_s, finish_s=8 + last_s, branch=branch)
    sequence.outcome, sequence.family = outcome, family
    return sequence


def test_limits_are_kept_up_to_the_last_instant_and_not_beyond():
    assert SLO.kept_by(ended(0, 0.5, 1.5, 5))
    assert not SLO.kept_by(ended(0, 0.5625, 1.5, 5)), "first token late"
    assert not SLO.kept_by(ended(0, 0.5, 1.5625, 5)), "later ones late"
    assert SLO.kept_by(ended(0, 0.5, 0.5, 1)), "a single token has none after it"
    assert not SLO.kept_by(ended(0, 0.5, 1.5, 5, "failed"))


@pytest.mark.parametrize(
    ("config", "slo"),
    [
        ({}, Slo()),
        ({"slo": {"ttft_s": None, "tpot_s": None}}, Slo()),
        ({"slo": {"ttft_s": 2, "tpot_s": None}}, Slo(ttft_s=2.0)),
        ({"slo": {"ttft_s": None, "tpot_s": 0}}, Slo(tpot_s=0.0)),
    ],
)
def test_a_limit_that_is_not_given_is_none(config, slo):
    assert Slo.of(config) == slo
    assert Slo.of(config).kept(0.0, 1.0, 1.0, 1)
    assert not Slo.of(config).kept(0.0, 3.0, 5.0, 2) or slo == Slo()


def test_a_request_of_several_sequences_is_served_well_if_all_of_them_are():
    good, late, failed = (Family(Request(id, 10, 5, 100, 8.0, n=2)) for id in (1, 2, 3))
    sequences = [
        ended(0, 0.25, 1.0, 5),
        ended(1, 0.25, 1.0, 5, family=good), ended(1, 0.25, 1.25, 5, family=good, branch=1),
        ended(2, 0.25, 4.0, 5, family=late), ended(2, 0.25, 1.0, 5, family=late, branch=1),
        ended(3, 0.25, 1.0, 5, family=failed), ended(3, 0.25, 1.0, 5, "failed", family=failed, branch=1),
    ]  # fmt: skip
    assert served_well(sequences, SLO) == 2
    assert served_well(reversed(sequences), SLO) == 2
    assert served_well(sequences, Slo()) == 3


@pytest.mark.parametrize("seed", range(5))
def test_counted_as_they_end_it_is_the_same(seed):
    rng = np.random.default_rng(seed)
    outcomes, tally = Outcomes(SimpleNamespace(), 0, SLO), Tally()
    families = [Family(Request(id, 10, 5, 100, 8.0, n=3)) for id in range(60)]
    for family in families:
        for branch in range(3):
            first_s = rng.exponential() / 4
            outcome = "failed" if rng.random() < 0.05 else "finished"
            one = ended(family.request.id, first_s, first_s + rng.exponential() / 2, 5, outcome, family, branch)
            family.live[one.id] = one
    left = [one for family in families for one in family.live.values()]
    for one in (left[at] for at in rng.permutation(len(left))):
        del one.family.live[one.id]  # as the scheduler does, before it says so
        tally.ended.append(one)
        outcomes.add(one)
    exact, streamed = work_metrics(tally, 1, 70, SLO), outcomes.metrics(tally, 1, 70)
    assert exact["goodput"] == streamed["goodput"] == served_well(tally.ended, SLO) / 70
    assert 0 < exact["goodput"] < exact["num_finished"] / 70
    assert not outcomes.late, "nothing is kept of those that ended"


def test_requests_in_columns_are_counted_one_by_one():
    outcomes = Outcomes(SimpleNamespace(many=lambda ended, most: None), 9, SLO)
    ones = np.ones(3, np.int64)
    first_s, finish_s = np.array([8.25, 8.75, 8.25]), np.array([9.0, 9.0, 12.0])
    outcomes.add_all(Ended(ones, ones * 8.0, ones, ones * 5, first_s, finish_s, ones, "finished", ""))
    never = np.full(3, np.nan)
    outcomes.add_all(Ended(ones, ones * 8.0, ones, ones * 0, never, never, ones, "refused", "too long"))
    assert outcomes.metrics(Tally(), 1, 6)["goodput"] == 1 / 6


def test_of_no_requests_there_is_none():
    assert Outcomes(SimpleNamespace(), 0).metrics(Tally(), 0, 0)["goodput"] is None
