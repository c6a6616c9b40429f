"""Numbers that cannot move reproduce nothing: five changes of Figs. 2 and 13, and where theory says they lead."""

from __future__ import annotations

import pytest

from kvlab.harness.compose import Composer
from kvlab.reproduce import rates, serving
from kvlab.reproduce.frame import Lab
from kvlab.reproduce.serving import Steps
from kvlab.reproduce.sosp23 import Load

FEW = {"ShareGPT": 120, "Alpaca": 600}  # where the published tables take thousands


@pytest.fixture(scope="module")
def lab():
    with Composer() as composer:
        yield Lab(lambda overrides: composer.compose(overrides).config)


def serve(lab: Lab, system: str, trace: str = "ShareGPT", seed: int = 0, **load) -> Steps:
    return serving.saturated(lab, Load(requests=FEW, **load).overrides(system, trace, seed), warm_up=50)


def test_another_seed_moves_shares_by_points_and_no_more(lab):
    shares = [serve(lab, "Orca (Oracle)", seed=seed).share("token_state") for seed in (0, 11)]
    assert shares[0] != shares[1]
    assert shares[0] == pytest.approx(shares[1], abs=8)  # few requests


def test_blocks_of_32_waste_twice_what_blocks_of_16_do(lab):
    """What a sequence does not use of its last block: half a block on average, a little more of long ones."""
    small, large = serve(lab, "vLLM"), serve(lab, "vLLM", blocks=492, block_size=32)
    wasted = [steps.share("reservation") + steps.share("internal") for steps in (small, large)]
    assert 1.7 < wasted[1] / wasted[0] < 2.4
    assert large.share("token_state") < small.share("token_state")


def test_half_the_pool_holds_the_runs_that_fit_into_it(lab):
    """7,872 slots are 4,096 + 2,048 and less: three runs of 2,048; and about half as many of the true lengths."""
    assert serve(lab, "Orca (Max)").batch() == 7
    assert serve(lab, "Orca (Max)", blocks=492).batch() == 3
    whole, half = serve(lab, "Orca (Oracle)").batch(), serve(lab, "Orca (Oracle)", blocks=492).batch()
    assert 0.4 < half / whole < 0.6


def test_twice_the_rate_has_at_least_twice_as_many_under_way(lab):
    """Little's law: as long as memory is not full, the batch is the rate times the seconds that a request takes."""
    runs = [
        serving.to_the_last_arrival(
            lab,
            [*Load(requests=FEW).overrides("vLLM", "ShareGPT", 0), f"workload.rate={rate}", "workload.num_requests=90"],
        )
        for rate in (0.8, 1.6)
    ]
    means = [
        float((steps.column("running") * steps.column("dt_s")).sum() / steps.column("dt_s").sum()) for steps in runs
    ]
    assert 1.8 < means[1] / means[0] < 3


def test_swapped_traces_take_their_numbers_along(lab):
    """A reservation for the limit does not see lengths; one of the true length has room for the shorter ones."""
    long, short = serve(lab, "Orca (Max)"), serve(lab, "Orca (Max)", "Alpaca")
    assert long.batch() == short.batch() == 7
    assert short.share("token_state") < long.share("token_state") / 3
    assert serve(lab, "Orca (Oracle)", "Alpaca").batch() > 4 * serve(lab, "Orca (Oracle)").batch()


def test_prompts_as_iterations_of_their_own_make_the_mean_smaller(lab):
    steps = serve(lab, "vLLM")
    assert steps.batch_of_iterations() < steps.batch()


@pytest.mark.parametrize("knee", [0.3, 2.0, 40.0])
def test_a_crossing_is_found_wherever_the_bracket_was(knee):
    found = rates.crossing(lambda rate: 0.5 * (rate / knee) ** 4, 1.0, 2.0, 0.5)
    assert found == pytest.approx(knee, rel=0.01)
