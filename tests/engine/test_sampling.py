"""From logits to tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.engine.sampling import Sampler


def draw(logits_NV, requests, positions, temperature=0.0, seed=0):
    size = len(requests)
    sampler = Sampler()
    tokens = sampler(
        torch.tensor(logits_NV),
        np.array(requests),
        np.array(positions),
        np.full(size, temperature),
        np.full(size, seed),
    )
    return tokens.tolist(), sampler.ties


def test_greedy_takes_the_best_and_reports_close_choices():
    tokens, ties = draw([[0.0, 3.0, 1.0], [2.0, 2.00001, 0.0], [5.0, 0.0, 4.9998]], [7, 8, 9], [10, 11, 12])
    assert tokens == [1, 1, 0]
    assert ties == [(8, 11)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_end_the_run(temperature):
    """A kernel that read what nobody wrote gave tokens like any other, and a run that was ok."""
    with pytest.raises(AssertionError, match=r"sequences \[8\] are not numbers"):
        draw([[0.0, 3.0], [2.0, float("nan")], [5.0, 0.0]], [7, 8, 9], [10, 11, 12], temperature)


def test_a_sample_depends_on_request_position_and_seed_alone():
    logits = np.random.default_rng(0).normal(size=(3, 200))
    together, ties = draw(logits, [0, 1, 2], [5, 6, 7], 1.0)
    alone, _ = draw(logits[1:2], [1], [6], 1.0)
    assert together[1:2] == alone
    assert ties == []
    flat = np.zeros((40, 1000))
    same, other_seed = (draw(flat, [1] * 40, range(40), 1.0, seed)[0] for seed in (0, 1))
    assert len(set(same)) > 30
    assert same != other_seed
    assert same != draw(flat, [2] * 40, range(40), 1.0)[0]


def test_temperature_shapes_the_distribution():
    """Two tokens at logits 0 and ln 3: 3/4 at temperature 1, and 9/10 at 0.5; 2,000 draws, five sigma each way."""
    logits = np.tile([0.0, np.log(3.0)], (2000, 1))
    for temperature, share in ((1.0, 0.75), (0.5, 0.9)):
        tokens, _ = draw(logits, [0] * 2000, range(2000), temperature)
        assert abs(np.mean(tokens) - share) < 5 * (share * (1 - share) / 2000) ** 0.5
