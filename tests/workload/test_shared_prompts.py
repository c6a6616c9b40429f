"""workload.shared_prefix: what all prompts begin with. And workload.mean, which sigma does not move."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.errors import UsageError
from kvlab.workload.make import make
from kvlab.workload.prompts import draw_prompt
from kvlab.workload.stream import stream

LENGTHS = {"prompt_len": {"min": 1, "max": 90}, "output_len": {"min": 1, "max": 9}}
UNIFORM = {"name": "uniform", "num_requests": 60} | LENGTHS
VOCAB = 50_000  # so large that two tokens are hardly ever equal by chance


def prompts(share, seed=3, **knobs):
    node = UNIFORM | {"shared_prefix": share} | knobs
    return [request.prompt for request in make(node, seed=seed, max_len=128, vocab=VOCAB).requests]


def common(first, second):
    """Tokens up to the first that differs."""
    both = min(len(first), len(second))
    unlike = np.flatnonzero(first[:both] != second[:both])
    return int(unlike[0]) if len(unlike) else both


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_two_prompts_have_the_shorter_ones_share_in_common_and_no_more(share):
    drawn = prompts(share)
    for index, first in enumerate(drawn):
        for second in drawn[:index]:
            least = min(round(share * len(first)), round(share * len(second)))
            assert common(first, second) == least


def test_behind_what_is_shared_each_prompt_is_what_it_was():
    for shared, alone in zip(prompts(0.4), prompts(0.0), strict=True):
        known = round(0.4 * len(alone))
        assert np.array_equal(shared[known:], alone[known:])
        assert known == 0 or not np.array_equal(shared[:known], alone[:known])


def test_lengths_arrivals_and_sampling_seeds_stay():
    nodes = [UNIFORM | {"rate": 2.0, "shared_prefix": share} for share in (0.0, 0.7)]
    without, shared = (make(node, seed=5, max_len=128, vocab=VOCAB).requests for node in nodes)
    seen = [[(r.prompt_len, r.output_len, r.arrival_s, r.seed) for r in requests] for requests in (without, shared)]
    assert seen[0] == seen[1]


def test_a_seed_has_a_beginning_of_its_own():
    assert common(draw_prompt(3, 0, 64, VOCAB, 1.0)[1], draw_prompt(4, 0, 64, VOCAB, 1.0)[1]) == 0
    assert np.array_equal(draw_prompt(3, 0, 64, VOCAB, 1.0)[1], draw_prompt(3, 9, 64, VOCAB, 1.0)[1])


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_streamed_workload_shares_the_same(share):
    node = UNIFORM | {"shared_prefix": share}
    streamed = stream(node, seed=3, max_len=128, vocab=VOCAB)
    for request, prompt in zip(streamed.requests(), prompts(share), strict=True):
        assert np.array_equal(request.prompt, prompt)
    assert streamed.about["shared_prefix"] == share


def test_a_file_shares_too(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("prompt_len,output_len\n40,2\n60,2\n")
    node = {"name": "file", "path": str(path), "num_requests": None, "shared_prefix": 0.5}
    first, second = (request.prompt for request in make(node, seed=0, max_len=128, vocab=VOCAB).requests)
    assert common(first, second) == 20


@pytest.mark.parametrize("share", [-0.1, 1.1, "half", True])
def test_no_share_is_refused_in_one_line(share):
    with pytest.raises(UsageError, match="workload.shared_prefix=.*: allowed is a number from 0 to 1"):
        prompts(share)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_the_mean_of_a_lognormal_workload_is_what_is_asked_for_whatever_sigma(sigma):
    node = {"name": "lognormal", "mu": 5.5, "sigma": sigma, "mean": 400, "cap": None, "prompt_share": 0.5}
    rows = make(node | {"num_requests": 4000}, seed=1, max_len=100_000, vocab=None)
    assert rows.info["total_tokens"] / 4000 == pytest.approx(400, rel=0.05)
    assert (rows.info["prompt_tokens"]["p99"] > 300) == (sigma > 0)


def test_a_mean_that_makes_no_length_is_refused():
    node = {
        "name": "lognormal",
        "mu": 5.5,
        "sigma": 0.9,
        "mean": 0,
        "cap": None,
        "prompt_share": 0.5,
        "num_requests": 1,
    }
    with pytest.raises(UsageError, match="workload.mean=0"):
        make(node, seed=1, max_len=512, vocab=None)
