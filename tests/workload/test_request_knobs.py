"""What all requests of a workload begin with, how many answers they want, how urgent they are; Fig. 11's lengths."""

from random import Random

import numpy as np
import pytest

from kvlab.errors import UsageError
from kvlab.workload import histograms
from kvlab.workload.make import make
from kvlab.workload.stream import stream

FIXED = {"name": "fixed", "prompt_len": 20, "output_len": 5, "num_requests": 40}


def made(max_len=1000, vocab=500, seed=0, **knobs):
    return make({**FIXED, **knobs}, seed=seed, max_len=max_len, vocab=vocab)


def test_a_system_prompt_goes_before_prompts_that_stay_what_they_were():
    plain, behind = made().requests, made(system_prompt=33).requests
    assert {request.prompt_len for request in behind} == {53}
    assert len({request.prompt[:33].tobytes() for request in behind}) == 1
    for one, other in zip(plain, behind, strict=True):
        assert np.array_equal(one.prompt, other.prompt[33:])
        assert (one.seed, one.arrival_s, one.output_len) == (other.seed, other.arrival_s, other.output_len)
        assert not other.prompt.flags.writeable
    assert not np.array_equal(behind[0].prompt[:33], made(system_prompt=33, seed=1).requests[0].prompt[:33])


def test_a_system_prompt_counts_for_the_limits_and_is_not_scaled():
    assert len(made(system_prompt=33, max_len=57).refused) == 40
    request = made(system_prompt=33, scale=0.5, max_tokens=4).requests[0]
    assert (request.prompt_len, request.limit) == (43, 47)


def test_answers_and_classes():
    requests = made(n=4, priorities=3).requests
    assert {(request.n, request.beams) for request in requests} == {(4, 0)}
    assert {request.priority for request in requests} == {0, 1, 2}
    assert [r.priority for r in made(priorities=3, num_requests=10).requests] == [r.priority for r in requests[:10]]
    assert {(request.n, request.beams, request.priority) for request in made(beams=2).requests} == {(1, 2, 0)}


@pytest.mark.parametrize("vocab", [None, 300])
def test_a_stream_has_the_same(vocab):
    config = {**FIXED, "system_prompt": 7, "n": 2, "priorities": 2, "scale": 0.7, "rate": 3.0}
    ours, theirs = make(config, seed=4, max_len=99, vocab=vocab), stream(config, seed=4, max_len=99, vocab=vocab)
    for one, other in zip(ours.requests, theirs.requests(), strict=True):
        assert (one.prompt_len, one.limit, one.n, one.priority) == (
            other.prompt_len,
            other.limit,
            other.n,
            other.priority,
        )
        assert one.arrival_s == other.arrival_s
        assert np.array_equal(one.prompt, other.prompt)
    for knob in ("system_prompt", "n", "beams", "priorities", "length_scale"):
        assert ours.info[knob] == theirs.about[knob]


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"n": 0}, "workload.n=0: allowed is a whole number, 1 or more"),
        ({"beams": -1}, "workload.beams=-1: allowed is a whole number, 0 or more"),
        ({"n": 2, "beams": 2}, "workload.n=2: allowed is 1 with workload.beams=2"),
        ({"priorities": 2000}, "workload.priorities=2000: allowed is at most 1024"),
        ({"system_prompt": 1.5}, "workload.system_prompt=1.5: allowed is a whole number"),
        ({"sample": "families"}, "workload.sample=families: only a file"),
    ],
)
def test_wrong_values(knobs, said):
    with pytest.raises(UsageError, match=said):
        made(**knobs)


# Means that the paper prints; drawing pairs of more than 2,048 tokens again makes ShareGPT's a little shorter.
@pytest.mark.parametrize(
    ("name", "prompt", "output", "within"),
    [("sharegpt_sosp23", 161.31, 337.99, 0.06), ("alpaca_sosp23", 19.31, 58.45, 0.02)],
)
def test_figure_11_has_the_means_that_the_paper_prints(name, prompt, output, within):
    rows = histograms.drawn(name, seed=0).rows(30_000)
    assert np.mean(rows.prompt) == pytest.approx(prompt, rel=within)
    assert np.mean(rows.output) == pytest.approx(output, rel=within)
    assert max(np.add(rows.prompt, rows.output)) <= 2048
    assert rows.origin["synthetic"] is True


def test_bars_are_drawn_as_often_as_they_are_high():
    bars = histograms.bars({"lo": 1.0, "width": 2.5, "per_100000": [50_000, 0, 50_000]})
    assert bars.edges == [1, 4, 6, 9]
    rng = Random(1)
    counts = np.bincount([bars.draw(rng) for _ in range(6000)], minlength=10) / 6000
    assert counts[[0, 4, 5, 9]].max() == 0
    assert counts[[1, 2, 3, 6, 7, 8]] == pytest.approx([1 / 6] * 6, abs=0.02)
