"""The PagedAttention paper's three Orcas: their shares of the pool and mean batch, from the bookkeeping alone.

Kwon et al., SOSP 2023: Fig. 2 (shares) and Fig. 13a (batch). OPT-13B on ShareGPT, a queue that is never empty, a pool
of 15,744 slots; lengths from the histograms of Fig. 11. Tolerances: what three seeds differ by.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvlab.engine.axes import Limit, Newest, Oracle, Pow2, PromptPlusOne
from kvlab.engine.clock import StepClock
from kvlab.engine.engine import Engine
from kvlab.engine.lanes import Lanes
from kvlab.engine.scheduler import Scheduler
from kvlab.record.recorder import Recorder
from kvlab.request import Request
from kvlab.strategies.buddy import Buddy
from kvlab.strategy import Memory

SLOTS, MAX_LEN, WARM_UP = 15_744, 2048, 300
PUBLISHED = {  # token state, reservation, internal, external in percent of the pool; mean batch
    "limit": (Limit(), (20.4, 13.3, 57.3, 8.9), 7.00),
    "pow2": (Pow2(), (26.8, 17.9, 13.6, 41.6), 9.81),
    "oracle": (Oracle(), (38.2, 25.2, 0.0, 36.6), 13.62),
}


class NoModel:
    """Lengths only: every token is nothing."""

    def run(self, moves, launch):
        return np.zeros(int(launch.samples_B.sum()), np.int32)


def sharegpt(tables, count, seed):
    """Input and output drawn independently from the two histograms; pairs of more than MAX_LEN are drawn again."""
    rng = np.random.default_rng(seed)
    drawn = [draw(tables[f"ShareGPT/{color}"], 2 * count, rng) for color in ("blue", "orange")]
    lengths = np.array(drawn).T
    prompt, output = lengths[lengths.sum(axis=1) <= MAX_LEN][:count].T
    return [Request(i, int(prompt[i]), int(output[i]), MAX_LEN) for i in range(count)]


def draw(table, count, rng):
    share = np.array(table["p"]) / sum(table["p"])
    bins = rng.choice(len(share), count, p=share)
    return np.maximum(1, table["lo"] + (bins + rng.random(count)) * table["width"]).astype(int)


def serve(strategy, forecast, requests):
    """Rows of the steps of a saturated run."""
    lanes = Lanes(strategy.memory.max_seqs, MAX_LEN, with_ids=False)
    scheduler = Scheduler(strategy, lanes, admission=PromptPlusOne(), victim=Newest(), forecast=forecast)
    engine = Engine(requests, scheduler, NoModel(), StepClock(), Recorder(strategy, lambda: 0))
    while engine.step() and scheduler.waiting:
        pass
    return engine.recorder.rows


@pytest.fixture(scope="module")
def orca(public_trace):
    tables = json.loads(public_trace("lengths/sosp23_fig11_histograms.json").read_text())
    return lambda forecast, count=3000, seed=0, fit="buddy": measured(sharegpt(tables, count, seed), forecast, fit)


def measured(requests, forecast, fit):
    """(shares in percent, mean batch, steps)."""
    memory = Memory(bytes=SLOTS * 8, token_bytes=8, max_len=MAX_LEN, max_seqs=64, chunk=MAX_LEN)
    rows = serve(Buddy(memory, fit), forecast, requests)[WARM_UP:]
    parts = ("token_state", "reservation", "internal", "external")
    shares = [100 * float(np.mean([getattr(row, part) for row in rows])) / memory.bytes for part in parts]
    return shares, float(np.mean([row.running for row in rows])), len(rows)


def assert_near(name, found, points=2.7, batch=0.4):
    _, published, published_batch = PUBLISHED[name]
    shares, mean_batch, steps = found
    assert steps > 5000
    assert shares == pytest.approx(published, abs=points)
    assert mean_batch == pytest.approx(published_batch, abs=batch)


@pytest.mark.parametrize("name", PUBLISHED)
def test_shares_and_batch_are_the_papers(name, orca):
    """A fifth of the requests, so a point more of tolerance."""
    assert_near(name, orca(PUBLISHED[name][0], count=600), points=3.7)


MISS = pytest.mark.xfail(strict=True, reason="Max with seed 1: 60.03 % internal, 2.73 points above the paper's 57.3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed"),
    [pytest.param(n, seed, marks=[MISS] * ((n, seed) == ("limit", 1))) for n in PUBLISHED for seed in range(3)],
)
def test_shares_and_batch_are_the_papers_on_its_number_of_requests(name, seed, orca):
    """Each seed by itself; the one that is further off than the tolerance is said to be, not averaged away."""
    assert_near(name, orca(PUBLISHED[name][0], seed=seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pow2", "oracle"])
def test_without_rounding_to_powers_of_two_the_batch_is_not_the_papers(name, orca):
    """First fit packs about 4 requests more, so it is the buddy that explains Fig. 2, not the forecast alone."""
    shares, batch, _ = orca(PUBLISHED[name][0], fit="first")
    assert batch > PUBLISHED[name][2] + 3
    assert shares[3] < PUBLISHED[name][1][3] - 15
