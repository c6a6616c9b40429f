"""Books that add up over tables that do not."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.engine.axes import Limit, Newest, PromptPlusOne
from kvlab.engine.clock import StepClock
from kvlab.engine.engine import Engine
from kvlab.engine.lanes import Lanes
from kvlab.engine.scheduler import Scheduler
from kvlab.record.accounting import AccountingError
from kvlab.record.recorder import Recorder
from kvlab.request import Request
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.paged import Paged
from kvlab.strategy import Memory


class NoOne:
    """Computes nothing; every token is 0."""

    ns: dict[str, int] = {}  # noqa: RUF012

    def run(self, moves, launch):
        return np.zeros(int(launch.samples_B.sum()), np.int32)


class Overlapping(Contiguous):
    """Rows begin 4 slots before the last one ends."""

    def __init__(self, memory):
        super().__init__(memory)
        self.free = [index * (self.row - 4) for index in range(self.rows)][::-1]


class Doubled(Paged):
    """Gives the newest sequence a block that another one has, and forgets the one it took."""

    def admit(self, arrival, new, leave=0):
        grant = super().admit(arrival, new, leave)
        if grant and len(self.table) > 1:
            first = next(iter(self.table.row))
            self.table.put(arrival.seq, 0, int(self.table[first][0]))
        return grant


@pytest.mark.parametrize(
    ("make", "message"), [(Overlapping, "share slots"), (lambda m: Paged(m, 4), None), (Doubled, "blocks of")]
)
def test_sequences_that_share_slots_fail_the_run(make, message):
    """Overlapping rows ended `ok` with wrong tokens: bytes were compared, slots were not."""
    memory = Memory(bytes=640, token_bytes=10, max_len=16, max_seqs=4, chunk=16)
    strategy = make(memory)
    lanes = Lanes(4, 16)
    scheduler = Scheduler(strategy, lanes, admission=PromptPlusOne(), victim=Newest(), forecast=Limit())
    requests = [Request(i, 5, 6, 16, 0.0, np.zeros(5, np.int32)) for i in range(4)]
    engine = Engine(requests, scheduler, NoOne(), StepClock(), Recorder(strategy, lambda: 0))
    if message is None:
        engine.run()
    else:
        with pytest.raises(AccountingError, match=message):
            engine.run()
