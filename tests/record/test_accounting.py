"""Where every byte of the pool is."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.record.accounting import AccountingError, Identity, split
from kvlab.record.step import Step
from kvlab.record.totals import Totals
from kvlab.strategy import Memory, Usage

MEMORY = Memory(bytes=1000, token_bytes=10, max_len=50, max_seqs=4, chunk=50)


def test_figure_3_of_the_pagedattention_paper():
    """Request A: 7 prompt tokens and 1 generated, 2 to come, room 2048; B: 3 prompt, 1 to come, room 512."""
    memory = Memory(bytes=4096, token_bytes=1, max_len=2048, max_seqs=4, chunk=2048)
    parts = split(memory, Usage(2560, 0, 1536, 0), np.array([8, 3]), np.array([2048, 512]), np.array([10, 4]))
    assert parts == (11, 2 + 1, 2038 + 508, 0, 1536)


def test_round_up_left_over_bytes_and_free_are_external():
    usage = Usage(held=300, cached=100, free=550, largest=0, rounded=40)  # 50 bytes the strategy cannot use
    parts = split(MEMORY, usage, np.array([5, 10]), np.array([10, 16]), np.array([9, 20]))
    assert parts.token_state == 150
    assert parts.reservation == 40 + 60
    assert parts.internal == 10
    assert parts.cached == 100
    assert parts.external == 550 + 50 + 40
    assert sum(parts) == 1000


def test_what_is_shared_may_be_more_than_what_is_held():
    """Five sequences over the same ten slots: 400 bytes are saved and 100 held, which was called an error."""
    parts = split(MEMORY, Usage(100, 0, 900, 0), np.full(5, 10), np.full(5, 10), np.full(5, 12))
    assert parts == (100, 0, 0, 0, 900)


@pytest.mark.parametrize("usage", [Usage(250, 0, 750, 0), Usage(1100, 0, 0, 0, 840), Usage(260, -10, 750, 0)])
def test_books_that_do_not_add_up_are_an_error(usage):
    """Holding less than the rooms (nobody shares here: more than is stored), or more than there is."""
    with pytest.raises(AccountingError):
        split(MEMORY, usage, np.array([0, 0]), np.array([10, 16]), np.array([9, 20]))


def test_capacity_must_not_change():
    identity = Identity(MEMORY, Usage(0, 0, 960, 10))
    identity.check(Usage(500, 60, 400, 10))
    with pytest.raises(AccountingError, match="960"):
        identity.check(Usage(500, 60, 410, 10))
    with pytest.raises(AccountingError, match="backed"):
        identity.check(Usage(500, 60, 400, 10, 0, 490))


def test_who_has_left_holds_nothing():
    identity = Identity(MEMORY, Usage(0, 0, 960, 10))
    identity.check_empty(Usage(0, 60, 900, 10))
    with pytest.raises(AccountingError, match="20 bytes are still held"):
        identity.check_empty(Usage(20, 0, 940, 10))


def row(dt: float, running: int, decode: int, token_state: int, waiting: int) -> Step:
    return Step(0.0, dt, running, waiting, 0, decode, token_state, 10, 20, 0, 0, token_state + 30, 1000, 1000, 0, 0)


def totals(rows: list[Step]) -> Totals:
    """Taken in at once; whatever they are cut into, the figures are the same."""
    made = []
    for size in (len(rows), 1, 3):
        made.append(Totals())
        for first in range(0, len(rows), size):
            made[-1].add(np.array(rows[first : first + size], np.float64))
    whole = made[0].metrics(1000)
    for other in made[1:]:
        assert {
            name: value for name, value in other.metrics(1000).items() if name != "waste" and name != "waste.whole"
        } == (
            pytest.approx({name: value for name, value in whole.items() if name != "waste" and name != "waste.whole"})
        )
    return made[0]


def test_shares_are_weighted_by_time_over_the_saturated_window():
    rows = totals([row(1, 2, 0, 100, 0), row(3, 2, 2, 500, 1), row(2, 4, 3, 200, 0), row(10, 1, 1, 50, 0)])
    assert rows.saturated.rows == 2  # the third request waits through the second step, though not through the first
    metrics = rows.metrics(1000)
    assert metrics["utilization"] == pytest.approx((100 + 3 * 500) / 4 / 1000)
    assert metrics["allocated_utilization"] == pytest.approx(1600 / (130 + 3 * 530))
    assert metrics["utilization.whole"] == pytest.approx((100 + 1500 + 400 + 500) / 16 / 1000)
    assert metrics["mean_batch_size"] == 2  # the step that only computed prompts is counted apart
    assert metrics["prefill_only_steps"] == 1
    assert metrics["mean_batch_size.whole"] == pytest.approx((2 + 4 + 1) / 3)
    assert metrics["waste"]["internal"] == pytest.approx(0.02)


def test_a_run_in_which_nobody_waited_is_not_called_saturated():
    """The window was taken from the last admission, so under a light load it covered the run, idle gaps included,
    and with all requests at 0 one single step."""
    rows = totals([row(1, 2, 0, 100, 0), row(3, 2, 2, 500, 0)])
    metrics = rows.metrics(1000)
    assert metrics["saturated_steps"] == 0
    assert metrics["utilization"] == metrics["utilization.whole"] == pytest.approx(0.4)


def test_waits_for_the_next_arrival_are_no_steps():
    """They were counted, which made every `_us_per_step` of a run with gaps too small."""
    rows = totals([row(1, 2, 2, 100, 0), row(9, 0, 0, 0, 0), row(1, 1, 1, 50, 0)])
    assert rows.launches == 2
