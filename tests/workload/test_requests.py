"""Requests: prompts by (seed, id), limits that give nothing away, refusals that keep their ids."""

import numpy as np
import pytest

from kvlab.workload.make import describe, make

FIXED = {"name": "fixed", "num_requests": 20, "prompt_len": 60, "output_len": 9}
AZURE = {"name": "azure_conv", "num_requests": 200}


def test_prompts_are_in_range_read_only_and_different():
    requests = make(FIXED, seed=0, max_len=128, vocab=11).requests
    for request in requests:
        assert request.prompt.dtype == np.int32
        assert request.prompt.shape == (60,)
        assert set(request.prompt.tolist()) <= set(range(11))
        with pytest.raises(ValueError, match="read-only"):
            request.prompt[0] = 0
    assert len({request.prompt.tobytes() for request in requests}) == 20
    assert len({request.seed for request in requests}) == 20


def test_prompts_use_the_whole_vocabulary_evenly():
    requests = make(FIXED | {"num_requests": 500}, seed=0, max_len=128, vocab=10).requests
    counts = np.bincount(np.concatenate([request.prompt for request in requests]), minlength=10)
    assert np.abs(counts / counts.sum() - 0.1).max() < 0.01


def test_seed_changes_prompts_and_sampling():
    one, two = (make(FIXED, seed=seed, max_len=128, vocab=1000).requests[0] for seed in (1, 2))
    assert one.prompt.tolist() != two.prompt.tolist()
    assert one.seed != two.seed


def test_lengths_only():
    with_ids = make(FIXED, seed=0, max_len=128, vocab=1000).requests
    without = make(FIXED, seed=0, max_len=128, vocab=None).requests
    assert all(request.prompt is None for request in without)
    assert [r.seed for r in without] == [r.seed for r in with_ids]


def test_temperature_is_handed_on():
    assert {r.temperature for r in make(FIXED, seed=0, max_len=128, vocab=9, temperature=0.7).requests} == {0.7}


def test_limit_does_not_tell_the_output_length():
    """A strategy that reserves by the limit must not learn how long the answer will be."""
    assert {r.limit for r in make(AZURE, seed=0, max_len=4096, vocab=None).requests} == {4096}
    for request in make(AZURE | {"max_tokens": 1024}, seed=0, max_len=4096, vocab=None).requests:
        assert request.limit == min(4096, request.prompt_len + 1024)


def test_no_request_exceeds_its_limit():
    for max_tokens in (None, 1, 100, 5000):
        workload = make(AZURE | {"max_tokens": max_tokens}, seed=0, max_len=2048, vocab=None)
        assert all(r.final <= r.limit <= 2048 for r in workload.requests)


def test_max_tokens_cuts_outputs_and_counts_them():
    free = make(AZURE, seed=0, max_len=20000, vocab=None)
    cut = make(AZURE | {"max_tokens": 100}, seed=0, max_len=20000, vocab=None)
    assert [r.output_len for r in cut.requests] == [min(100, r.output_len) for r in free.requests]
    assert cut.info["num_cut_by_max_tokens"] == sum(r.output_len > 100 for r in free.requests) > 0
    assert free.info["num_cut_by_max_tokens"] == 0


def test_refusals_keep_ids_prompts_and_arrivals_of_the_others():
    """A sweep over max_len compares the same requests: a refusal must not renumber those after it."""
    wide = {r.id: r for r in make(AZURE | {"rate": 4}, seed=0, max_len=20000, vocab=500).requests}
    workload = make(AZURE | {"rate": 4}, seed=0, max_len=1500, vocab=500)
    assert len(wide) == 200
    assert len(workload.refused) > 20
    assert sorted([r.id for r in workload.requests] + [r.id for r in workload.refused]) == list(range(200))
    for request in workload.requests:
        same = wide[request.id]
        assert request.prompt.tolist() == same.prompt.tolist()
        assert (request.output_len, request.arrival_s, request.seed) == (
            same.output_len,
            same.arrival_s,
            same.seed,
        )


def test_refusals_say_why():
    refused = make(FIXED | {"num_requests": 1}, seed=0, max_len=68, vocab=None).refused
    assert refused == [(0, 60, 9, "60 prompt + 9 output tokens are more than max_len=68")]


def test_describe_is_one_line_that_says_what_matters():
    line = describe(make(AZURE | {"rate": 4, "scale": 0.5}, seed=0, max_len=1500, vocab=None))
    assert "\n" not in line
    for words in ("azure_conv (synthetic:", "200 requests", "refused", "lengths x 0.5", "poisson at 4/s"):
        assert words in line
    assert "all at 0" in describe(make(FIXED, seed=0, max_len=128, vocab=None))
    assert "20 refused" in describe(make(FIXED, seed=0, max_len=10, vocab=None))
