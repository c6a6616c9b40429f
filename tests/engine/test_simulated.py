"""The simulated engine: what it skips it records, and it decides as an engine with a memory does."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.engine.axes import Limit, Newest, PromptPlusOne
from kvlab.engine.lanes import Lanes
from kvlab.engine.scheduler import Scheduler
from kvlab.engine.simulated import SimulatedClock, SimulatedEngine, SimulatedExecutor, hashed
from kvlab.record.recorder import Recorder


class Lengthy:
    """Longer with every token that is read; prompts cost more."""

    def launch(self, new_B, stop_B, samples):
        return 1.0 + float(stop_B.sum()) / 1024 + float((new_B - 1).sum()) / 64

    def decode(self, seqs, tokens, steps):
        return 1.0 + (tokens + seqs * np.arange(steps)) / 1024

    def moves(self, moves):
        return len(moves) / 256

    def beside(self, moves, launch_s):
        return len(moves) / 512


def simulate(strategy, requests, tokens=None, skips=True, watch=None, **options):
    """The engine, run. skips=False: every launch by itself."""
    lanes = Lanes(strategy.memory.max_seqs, strategy.memory.max_len)
    axes = {"admission": PromptPlusOne(), "victim": Newest(), "forecast": Limit()}
    scheduler = Scheduler(strategy, lanes, **axes)
    executor = SimulatedExecutor(Lengthy(), lanes, SimulatedClock(), tokens or hashed(50))
    if watch is not None:
        plain = executor.run
        executor.run = lambda moves, launch: watch(scheduler, moves, launch) or plain(moves, launch)
    times = [request.arrival_s for request in requests]
    engine = SimulatedEngine(requests, times, scheduler, executor, Recorder(strategy, None), **options)
    if not skips:
        engine.scheduler.quiet.launches = lambda launch: 0
    engine.run()
    return engine


def life(sequence):
    return (sequence.id, sequence.outcome, sequence.first_token_s, sequence.finish_s, sequence.output.tolist())


SIZES = [(120, 64, 8, None), (90, 50, 5, 7), (64, 64, 3, None), (700, 64, 16, 16)]


@pytest.mark.parametrize("gap_s", [0.0, 3.7, 40.0])
@pytest.mark.parametrize("size", SIZES)
def test_launches_taken_in_one_go_are_recorded_as_if_one_by_one(make_strategy, memory, requests, size, gap_s):
    tokens, max_len, max_seqs, chunk = size
    work = requests(14, max_len, seed=tokens, gap_s=gap_s)
    room = memory(tokens, max_len=max_len, max_seqs=max_seqs, chunk=chunk)
    whole, single = (simulate(make_strategy(room), work, skips=skips, window=10**9) for skips in (True, False))
    assert whole.recorder.rows == single.recorder.rows
    assert [life(s) for s in whole.scheduler.tally.ended] == [life(s) for s in single.scheduler.tally.ended]
    assert whole.scheduler.tally.preemptions == single.scheduler.tally.preemptions


def test_most_launches_are_taken_in_one_go(memory, requests):
    """Otherwise the test above compares an engine with itself."""
    from kvlab.strategies.paged import Paged

    planned = []
    work = requests(4, 500, seed=1)
    engine = simulate(Paged(memory(4000, max_len=500), 16), work, watch=lambda *_: planned.append(1))
    assert len(planned) < engine.recorder.totals.launches / 2


@pytest.mark.parametrize("seed", range(4))
def test_decisions_are_those_of_an_engine_with_a_memory(make_any, memory, alike, serve, seed):
    """All requests at 0: the same moves, the same sequences in the same launches, whatever a launch takes."""
    tokens, max_len, max_seqs, chunk = SIZES[seed]
    work = alike(20, max_len, seed=seed)
    room = memory(tokens, max_len=max_len, max_seqs=max_seqs, chunk=chunk)
    real, simulated = [], []

    def note(steps):
        return lambda scheduler, moves, launch: steps.append(
            (list(moves), list(launch.beside), scheduler.lanes.id[launch.lane_B].tolist(),
             launch.start_B.tolist(), launch.stop_B.tolist(), scheduler.tally.preemptions)
        )  # fmt: skip

    engine = serve(make_any(room), work, watch_moves=note(real))
    output = {s.id: s.output for s in engine.scheduler.tally.ended}

    def said(id_N, position_N):
        """What the other engine said there."""
        pairs = zip(id_N.tolist(), position_N.tolist(), strict=True)
        return np.array([output[id][position - work[id].prompt_len] for id, position in pairs], np.int32)

    other = simulate(make_any(room), work, tokens=said, skips=False, watch=note(simulated))
    assert simulated == real
    assert len(real) > 30
    assert {s.id: s.outcome for s in other.scheduler.tally.ended} == {
        s.id: s.outcome for s in engine.scheduler.tally.ended
    }
    skipping = simulate(make_any(room), work, tokens=said)
    strip = [row[2:] for row in other.recorder.rows]
    assert [row[2:] for row in skipping.recorder.rows] == strip


def test_requests_that_wait_are_counted_before_they_are_made(memory, requests):
    """With a window of as many as may start at once; the queue is as long as with all of them made."""
    from kvlab.strategies.contiguous import Contiguous

    work = requests(30, 64, seed=9, gap_s=2.0)
    few, all_ = (simulate(Contiguous(memory(150, max_seqs=3)), work, window=window) for window in (1, 10**9))
    assert few.recorder.rows == all_.recorder.rows
    assert max(row.waiting for row in few.recorder.rows) > 5
