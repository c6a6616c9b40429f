"""workload=tenant: one long request among others, who are the same however long it is."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.errors import UsageError
from kvlab.workload.make import make
from kvlab.workload.stream import stream

NODE = {
    "_target_": "kvlab.workload.tenant.make", "name": "tenant", "tenant_prompt_len": 3000, "tenant_output_len": 50,
    "tenant_after": 0.5, "mean": 100, "sigma": 0.9, "cap": 400, "prompt_share": 0.3, "num_requests": 41, "rate": 2.0,
}  # fmt: skip


def workload(max_len=4096, **knobs):
    return make(NODE | knobs, seed=2, max_len=max_len, vocab=97)


def others(made):
    requests = [r for r in made.requests if r.id != made.info["tenant_id"]]
    return [(r.prompt_len, r.output_len, r.arrival_s, r.seed, r.prompt.tolist()) for r in requests]


def test_the_tenant_comes_in_the_middle_and_the_others_do_not_change():
    long, short = workload(), workload(tenant_prompt_len=5)
    tenant = long.requests[20]
    assert (long.info["tenant_id"], tenant.prompt_len, tenant.output_len) == (20, 3000, 50)
    assert tenant.arrival_s == long.requests[21].arrival_s
    assert [r.id for r in long.requests] == list(range(42))
    assert others(long) == others(short)
    assert long.info["source"].startswith("one of 3000 + 50 tokens among others of lognormal")


@pytest.mark.parametrize(("after", "place"), [(0, 0), (1, 40)])
def test_it_may_come_first_or_with_the_last(after, place):
    assert workload(tenant_after=after).info["tenant_id"] == place


def test_others_that_are_too_long_are_refused_and_counted():
    made = workload(max_len=350, cap=4000, tenant_prompt_len=200)
    assert made.refused
    assert sorted([r.id for r in made.requests] + [r.id for r in made.refused]) == list(range(42))


def test_it_is_streamed_too():
    streamed = stream(NODE, seed=2, max_len=4096, vocab=97)
    for one, other in zip(streamed.requests(), workload().requests, strict=True):
        assert np.array_equal(one.prompt, other.prompt)
    assert streamed.num_requests == 42


@pytest.mark.parametrize(
    ("knobs", "line"),
    [
        (
            {"tenant_prompt_len": 4090},
            "tenant_prompt_len=4090: with tenant_output_len=50, allowed is at most max_len=4096",
        ),
        ({"tenant_after": 1.5}, "workload.tenant_after=1.5: allowed is a number from 0 to 1"),
        ({"cap": None}, "workload.cap=null"),
        ({"mu": 5}, "workload.mu: workload tenant has no such knob"),
    ],
)
def test_a_wrong_knob_is_one_line(knobs, line):
    with pytest.raises(UsageError, match=line):
        workload(**knobs)
