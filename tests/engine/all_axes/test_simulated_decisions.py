"""The simulated engine decides under every setting of the axes as the engine over a memory does, and skips nothing."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from kvlab.engine.lanes import Lanes
from kvlab.engine.scheduler import Scheduler
from kvlab.engine.settings import Settings
from kvlab.engine.simulated import SimulatedClock, SimulatedEngine, SimulatedExecutor
from kvlab.record.recorder import Recorder


class Even:
    """Every launch takes a second."""

    def launch(self, new_B, stop_B, samples):
        return 1.0

    def decode(self, seqs, tokens, steps):
        return np.ones(steps)

    def moves(self, moves):
        return 0.0

    def beside(self, moves, launch_s):
        return 0.0


def simulate(life, said, skips: bool, watch, speculation) -> SimulatedEngine:
    strategy, options = life.strategy, dict(life.options)
    lanes = Lanes(strategy.memory.max_seqs, strategy.memory.max_len)
    settings = Settings(**{field.name: options.pop(field.name) for field in fields(Settings)})
    scheduler = Scheduler(strategy, lanes, settings=settings, speculation=speculation, **options)
    executor = SimulatedExecutor(Even(), lanes, SimulatedClock(), said)
    carry_out = executor.run
    executor.run = lambda moves, launch: watch(scheduler, moves, launch) or carry_out(moves, launch)
    times = [request.arrival_s for request in life.requests]
    engine = SimulatedEngine(life.requests, times, scheduler, executor, Recorder(strategy, None))
    if not skips:
        scheduler.quiet.launches = lambda launch: 0
    engine.run()
    return engine


def note(steps: list):
    return lambda scheduler, moves, launch: steps.append(
        (list(moves), list(launch.beside), scheduler.lanes.id[launch.lane_B].tolist(), launch.start_B.tolist(),
         launch.stop_B.tolist(), scheduler.tally.preemptions, scheduler.tally.forks, scheduler.tally.idle)
    )  # fmt: skip


def ends(engine) -> dict[int, tuple]:
    ended = engine.scheduler.tally.ended
    return {one.id: (one.outcome, one.reason, one.preemptions, one.output.tolist()) for one in ended}


def without_beams(one):
    """Beams are drawn by chance where there is no model; whoever comes, comes at a whole second."""
    made = [replace(request, beams=0, arrival_s=float(int(request.arrival_s))) for request in one.requests]
    return replace(one, requests=made)


def decided(row) -> tuple:
    """A row but for its times, and for who waits: requests that have come, or their sequences once they are made."""
    return row._replace(time_s=0.0, dt_s=0.0, waiting=0)


def said_by(engine):
    """What an engine has said, token by token; 0 behind the end."""
    output = {one.id: (one.request.prompt_len, one.output.tolist()) for one in engine.scheduler.tally.ended}

    def token(id: int, position: int) -> int:
        prompt, tokens = output.get(id, (0, []))
        return tokens[position - prompt] if position - prompt < len(tokens) else 0

    return lambda id_N, position_N: np.array(list(map(token, id_N.tolist(), position_N.tolist())), np.int32)


def compare(serve, life, seed: int) -> int:
    """How many launches were compared."""
    plain, first, second, third = (without_beams(life(seed)) for _ in range(4))
    drafts = first.drafts.by(said_by(serve(plain.strategy, plain.requests, **plain.options)))
    real, simulated = [], []
    engine = serve(first.strategy, first.requests, watch_moves=note(real), speculation=drafts, **first.options)
    said = said_by(engine)
    other = simulate(second, said, False, note(simulated), drafts)
    assert simulated == real
    assert ends(other) == ends(engine)
    skipping = simulate(third, said, True, note([]), drafts)
    assert ends(skipping) == ends(engine)
    assert list(map(decided, skipping.recorder.rows)) == list(map(decided, other.recorder.rows))
    return len(real)


@pytest.mark.parametrize("seed", range(2000, 2012))
def test_decisions_are_those_of_an_engine_with_a_memory(serve, life, seed: int) -> None:
    compare(serve, life, seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundreds", range(30, 32))
def test_decisions_of_hundreds_are_those_of_an_engine_with_a_memory(serve, life, hundreds: int) -> None:
    assert sum(compare(serve, life, seed) for seed in range(100 * hundreds, 100 * hundreds + 100)) > 1000
