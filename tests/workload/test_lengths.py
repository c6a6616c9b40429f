"""Drawn lengths: the published figure, the ranges, and what stays equal when a workload grows."""

import json
import subprocess
import sys

import numpy as np
import pytest

from kvlab.errors import UsageError
from kvlab.workload.lengths import lognormal_lengths
from kvlab.workload.make import make

LOGNORMAL = {
    "name": "lognormal",
    "num_requests": 50,
    "mu": 5.5,
    "sigma": 0.9,
    "cap": None,
    "prompt_share": 0.5,
}
UNIFORM = {
    "name": "uniform",
    "num_requests": 400,
    "prompt_len": {"min": 3, "max": 6},
    "output_len": {"min": 1, "max": 2},
}
FIXED = {"name": "fixed", "num_requests": 3, "prompt_len": 7, "output_len": 5}
LISTED = {"name": "listed", "num_requests": 3, "lengths": [[3, 5], [8, 1], [4, 4], [1, 2]]}
ALL = [LOGNORMAL, UNIFORM, FIXED, {"name": "azure_conv", "num_requests": 50}]


def lengths(workload):
    return [(r.id, r.prompt_len, r.output_len) for r in workload.requests]


def identity(workload):
    return [(r.id, r.prompt_len, r.output_len, r.seed, r.arrival_s, r.prompt.tolist()) for r in workload.requests]


def test_published_sum():
    """2,000 sequences of seed 0 store 730,840 tokens: the figure everything at max_len 4096 is divided by."""
    drawn = lognormal_lengths(2000, 0, 5.5, 0.9, 4096)
    assert sum(drawn) == 730_840
    assert max(drawn) <= 4096


def test_lognormal_workload_draws_the_published_totals():
    workload = make(LOGNORMAL | {"num_requests": 2000}, seed=0, max_len=4096, vocab=None)
    assert workload.info["total_tokens"] == 730_840
    assert workload.refused == []


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_every_request_has_a_prompt_and_an_output(share):
    """A total of 1 has room for neither's neighbour: it becomes 2, never a request of no output."""
    workload = make(LOGNORMAL | {"mu": 0, "prompt_share": share}, seed=0, max_len=64, vocab=None)
    assert min(min(r.prompt_len, r.output_len) for r in workload.requests) == 1
    totals = lognormal_lengths(50, 0, 0, 0.9, 64)
    assert 1 in totals
    assert [r.final for r in workload.requests] == [max(2, total) for total in totals]


def test_cap_beyond_max_len_refuses_instead_of_cutting():
    capped = make(LOGNORMAL, seed=0, max_len=256, vocab=None)
    longer = make(LOGNORMAL | {"cap": 4096}, seed=0, max_len=256, vocab=None)
    assert capped.refused == []
    assert len(longer.refused) > 5
    assert all(refused.prompt_len + refused.output_len > 256 for refused in longer.refused)


def test_uniform_reaches_both_ends():
    workload = make(UNIFORM, seed=0, max_len=64, vocab=None)
    assert {r.prompt_len for r in workload.requests} == {3, 4, 5, 6}
    assert {r.output_len for r in workload.requests} == {1, 2}


def test_fixed_up_to_max_len():
    assert lengths(make(FIXED, seed=0, max_len=12, vocab=None)) == [(0, 7, 5), (1, 7, 5), (2, 7, 5)]
    everything = make(FIXED, seed=0, max_len=11, vocab=None)
    assert everything.requests == []
    assert [refused.id for refused in everything.refused] == [0, 1, 2]


def test_listed_lengths_run_as_they_are_written():
    assert lengths(make(LISTED, seed=3, max_len=12, vocab=None)) == [(0, 3, 5), (1, 8, 1), (2, 4, 4)]


@pytest.mark.parametrize("config", ALL, ids=lambda config: config["name"])
def test_more_requests_leave_the_first_ones_alone(config):
    short = make(config | {"rate": 2.0}, seed=3, max_len=4096, vocab=100)
    longer = make(config | {"rate": 2.0, "num_requests": 450}, seed=3, max_len=4096, vocab=100)
    assert identity(longer)[: len(short.requests)] == identity(short)


@pytest.mark.parametrize("config", ALL[:2] + ALL[3:], ids=lambda config: config["name"])
def test_seeds_differ(config):
    assert lengths(make(config, seed=1, max_len=4096, vocab=None)) != lengths(
        make(config, seed=2, max_len=4096, vocab=None)
    )


@pytest.mark.parametrize("config", [LOGNORMAL, {"name": "sharegpt", "num_requests": 20}], ids=["drawn", "trace"])
def test_another_process_makes_the_same_requests(config):
    """Nothing may hang on Python's per-process string hashes, nor on what ran before."""
    program = (
        "import sys, json; from kvlab.workload.make import make\n"
        "w = make(json.loads(sys.argv[1]), seed=5, max_len=4096, vocab=49152)\n"
        "print(json.dumps([(r.id, r.prompt_len, r.output_len, r.seed, r.arrival_s, r.prompt.tolist())"
        " for r in w.requests]))"
    )
    config = config | {"rate": 3.0}
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(config)], capture_output=True, text=True, check=True
    )
    here = identity(make(config, seed=5, max_len=4096, vocab=49152))
    assert [tuple(row) for row in json.loads(done.stdout)] == here


def test_scale_makes_a_laptop_workload():
    whole = make(LOGNORMAL | {"prompt_share": 0.01}, seed=0, max_len=4096, vocab=None)
    small = make(LOGNORMAL | {"prompt_share": 0.01, "scale": 0.125}, seed=0, max_len=4096, vocab=None)
    assert small.info["length_scale"] == 0.125
    for before, after in zip(whole.requests, small.requests, strict=True):
        assert after.prompt_len == max(1, round(before.prompt_len / 8))
        assert after.output_len == max(1, round(before.output_len / 8))
    assert min(round(r.prompt_len / 8) for r in whole.requests) == 0


def test_scale_comes_before_the_check_of_max_len():
    assert make(FIXED | {"scale": 0.5}, seed=0, max_len=8, vocab=None).refused == []
    assert len(make(FIXED | {"scale": 2}, seed=0, max_len=23, vocab=None).refused) == 3


def test_info_counts_arrivals_and_measures_what_runs():
    workload = make(UNIFORM, seed=0, max_len=7, vocab=None)
    info, finals = workload.info, [r.final for r in workload.requests]
    assert info["num_requests"] == 400
    assert info["num_refused"] == len(workload.refused) == 400 - len(finals) > 0
    assert info["total_tokens"] == sum(finals)
    assert info["prompt_tokens"]["mean"] == pytest.approx(np.mean([r.prompt_len for r in workload.requests]))
    assert info["prompt_tokens"]["p99"] == max(r.prompt_len for r in workload.requests)
    assert info["synthetic"] is True
    json.dumps(info)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_requests": 0}, "num_requests=0: allowed is a whole number, 1 or more"),
        ({"num_requests": -3}, "num_requests=-3"),
        ({"num_requests": "many"}, "num_requests=many"),
        ({"num_requests": 2.5}, "num_requests=2.5"),
        ({"num_requests": True}, "num_requests=True"),
        ({"num_requests": None}, "num_requests=null"),
        ({"mu": "high"}, "mu=high: allowed is a number from 0 to 50"),
        ({"mu": 900}, "mu=900"),
        ({"sigma": -1}, "sigma=-1"),
        ({"sigma": float("nan")}, "sigma=nan"),
        ({"cap": 0}, "cap=0"),
        ({"prompt_share": 1.5}, "prompt_share=1.5: allowed is a number from 0 to 1"),
        ({"scale": 0}, "scale=0: allowed is a number above 0"),
        ({"scale": "half"}, "scale=half"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"sample": "random"}, "sample=random: only a file"),
        ({"name": "lognromal"}, "name=lognromal: allowed are lognormal, uniform, fixed, listed, arxiv, azure_conv"),
        ({"name": None}, "name=null"),
        ({"output_len": 3}, "workload.output_len: workload lognormal has no such knob"),
    ],
)
def test_wrong_knobs(change, message):
    with pytest.raises(UsageError, match=r"^workload\.") as caught:
        make(LOGNORMAL | change, seed=0, max_len=4096, vocab=None)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_len": 5}, "prompt_len=5: a uniform workload takes prompt_len.min and prompt_len.max"),
        ({"prompt_len": {"min": 5, "max": 4}}, "prompt_len.min=5: allowed is at most prompt_len.max=4"),
        ({"output_len": {"min": 0, "max": 4}}, "output_len.min=0"),
        ({"output_len": {"min": 1, "max": "x"}}, "output_len.max=x"),
    ],
)
def test_wrong_ranges(change, message):
    with pytest.raises(UsageError) as caught:
        make(UNIFORM | change, seed=0, max_len=4096, vocab=None)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed=-1: allowed is a whole number, 0 or more"),
        ({"seed": "x"}, "seed=x"),
        ({"max_len": 0}, "max_len=0: allowed is a whole number, 1 or more"),
        ({"vocab": 0}, "vocab=0"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(UsageError) as caught:
        make(FIXED, **({"seed": 0, "max_len": 64, "vocab": None} | arguments))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_requests": 5}, "num_requests=5: allowed is at most 4, as many as workload.lengths"),
        ({"lengths": None}, "lengths=null: allowed is a list"),
        ({"lengths": []}, "lengths=[]"),
        ({"lengths": [[3, 5], [4]]}, "lengths=[[3, 5], [4]]"),
        ({"lengths": [[3, 0]]}, "lengths=[[3, 0]]"),
        ({"lengths": [[True, 2]]}, "lengths=[[True, 2]]"),
        ({"cap": 9}, "workload.cap: workload listed has no such knob"),
    ],
)
def test_wrong_lists(change, message):
    with pytest.raises(UsageError, match=r"^workload\.") as caught:
        make(LISTED | change, seed=0, max_len=4096, vocab=None)
    assert message in str(caught.value)
