"""The engine over columns decides, records and counts what the engine over sequences does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvlab import simulate
from kvlab.engine.axes import Limit, Newest, PromptPlusOne, Recompute, Watermark
from kvlab.engine.lanes import Lanes
from kvlab.engine.plain import PlainScheduler
from kvlab.engine.plain_engine import PlainEngine
from kvlab.engine.scheduler import Scheduler
from kvlab.engine.settings import Settings
from kvlab.engine.simulated import SimulatedClock, SimulatedEngine, SimulatedExecutor, SimulatedTime, hashed
from kvlab.harness.compose import compose
from kvlab.record.batched import BatchedRecorder
from kvlab.record.recorder import Recorder
from kvlab.request import Request
from kvlab.strategies.buddy import Buddy
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.growing import Growing
from kvlab.strategies.paged import Paged
from kvlab.strategies.prefix import Prefix
from kvlab.strategies.token_pool import TokenPool
from kvlab.strategies.vattention import VAttention
from kvlab.workload.stream import Batch

AXES = {"admission": PromptPlusOne(), "victim": Newest(), "forecast": Limit()}
MAKE = {
    "paged": lambda memory: Paged(memory, 4),
    "paged16": lambda memory: Paged(memory, 16),
    "buddy": Buddy,
    "contiguous": Contiguous,
    "growing": lambda memory: Growing(memory, mode="step", step=8),
    "token_pool": TokenPool,
    "vattention": lambda memory: VAttention(memory, map_ahead=1),
}


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


def noted(time, seen, name):
    """Remember the launches with moves, and who runs in them; without them, one may be part of a stretch or not."""
    plain = getattr(time, name)

    def call(moves, launch, rest):
        if moves or launch.beside:
            tokens = launch.start_B.tolist(), launch.stop_B.tolist()
            seen.append((time.clock.seconds, list(moves), list(launch.beside), *tokens))
        return plain(moves, launch, rest)

    setattr(time, name, call)


def run_sequences(strategy, requests, limit, window):
    lanes, seen = Lanes(strategy.memory.max_seqs, 0, with_ids=False), []
    scheduler = Scheduler(strategy, lanes, settings=Settings(max_preemptions=limit), **AXES)
    executor = SimulatedExecutor(Lengthy(), lanes, SimulatedClock(), hashed(50))
    times = [request.arrival_s for request in requests]
    engine = SimulatedEngine(requests, times, scheduler, executor, Recorder(strategy, None), window=window)
    noted(executor, seen, "pass_by")
    noted(executor, seen, "decode")
    engine.run()
    ends = [
        (s.id, s.request.arrival_s, s.request.prompt_len, s.known - s.request.prompt_len, s.first_token_s, s.finish_s,
         s.preemptions, s.outcome, s.reason, s.branch)
        for s in scheduler.tally.ended
    ]  # fmt: skip
    return engine, seen, ends


def run_columns(strategy, requests, limit, window):
    seen, ends = [], []
    scheduler = PlainScheduler(strategy, lambda ended: ends.extend(ended.rows(10**9)), limit)
    time = SimulatedTime(Lengthy(), SimulatedClock())
    noted(time, seen, "pass_by")
    noted(time, seen, "decode")
    engine = PlainEngine(batches(requests), (r.arrival_s for r in requests), scheduler, time,
                         BatchedRecorder(strategy), window=window)  # fmt: skip
    engine.run()
    return engine, seen, ends


def batches(requests):
    """Seven at a time."""
    for first in range(0, len(requests), 7):
        rows = [(r.id, r.prompt_len, r.output_len, r.limit, r.arrival_s) for r in requests[first : first + 7]]
        yield Batch(*map(np.array, zip(*rows, strict=True)))


def work(rng, max_len):
    """Random requests; of some the limit is short, and they come at once, or now and then, or both."""
    gap_s, limited = rng.choice([0.0, 0.3, 5.0]), rng.random() < 0.5
    time_s, made = 0.0, []
    for index in range(int(rng.integers(1, 60))):
        prompt = int(rng.integers(1, max_len))
        output = int(rng.integers(1, max_len - prompt + 1))
        limit = min(max_len, prompt + output + int(rng.integers(0, 5))) if limited else max_len
        made.append(Request(index, prompt, output, limit, time_s))
        time_s += float(rng.exponential(gap_s)) * (rng.random() < 0.7) if gap_s else 0.0
    return made


def setting(memory, seed):
    """Random ones: (memory, requests, max_preemptions, window)."""
    rng = np.random.default_rng(seed)
    max_len = int(rng.integers(4, 80))
    tokens = int(max_len * rng.choice([0.8, 1.1, 2.0, 5.0]))
    chunk = int(rng.integers(1, max_len + 1)) if rng.random() < 0.4 else None
    room = memory(tokens, max_len=max_len, max_seqs=int(rng.integers(1, 12)), chunk=chunk)
    return room, work(rng, max_len), int(rng.choice([0, 2, 20])), int(rng.choice([1, 1024]))


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("name", MAKE)
def test_both_engines_do_the_same(memory, name, seed):
    room, requests, limit, window = setting(memory, seed)
    sequences, columns = MAKE[name](room), MAKE[name](room)
    one, one_seen, one_ends = run_sequences(sequences, requests, limit, window)
    two, two_seen, two_ends = run_columns(columns, requests, limit, window)
    assert two_seen == one_seen
    assert two.recorder.rows == one.recorder.rows
    assert two_ends == one_ends
    assert len(two_ends) == len(requests)
    for count in ("preemptions", "recomputed_tokens", "admissions", "input_tokens", "hit_tokens", "num_ended"):
        assert getattr(two.scheduler.tally, count) == getattr(one.scheduler.tally, count)
    assert columns.counts == sequences.counts
    assert columns.usage() == sequences.usage()


def test_the_settings_above_preempt_refuse_and_fail(memory):
    """Otherwise they would compare little."""
    outcomes, preemptions = set(), 0
    for seed in range(16):
        room, *rest = setting(memory, seed)
        engine, _, ends = run_columns(Paged(room, 4), *rest)
        outcomes |= {end[7] for end in ends}
        preemptions += engine.scheduler.tally.preemptions
    assert outcomes == {"finished", "refused", "failed"}
    assert preemptions > 20


@pytest.mark.parametrize(
    "overrides",
    [
        ["workload=lognormal", "workload.rate=40"],
        ["workload=fixed", "workload.prompt_len=40", "workload.output_len=90"],
        ["workload=uniform", "workload.max_tokens=60", "strategy=buddy", "engine.max_preemptions=1"],
    ],
)
def test_results_and_files_are_the_same(monkeypatch, tmp_path, overrides):
    base = [
        "executor=simulated",
        "model=llama_2_7b",
        "gpu=a100_80",
        "dtype=bfloat16",
        "max_len=512",
        "engine.max_seqs=16",
    ]
    config = compose([*base, "engine.max_seqs=16", "workload.num_requests=200", "pool_blocks=100", *overrides]).config
    results = []
    for kind in ("columns", "sequences"):
        monkeypatch.setattr(simulate, "is_plain", lambda *_, kind=kind, **__: kind == "columns")
        planned, folder = simulate.plan(config), tmp_path / kind
        folder.mkdir()
        results.append((simulate.serve(config, planned, folder, None), *map(Path.read_text, sorted(folder.iterdir()))))
    assert results[0] == results[1]
    assert results[0][0]["num_finished"] > 50


@pytest.mark.parametrize(
    ("strategy", "settings", "axes", "plain"),
    [
        (Paged, {}, {}, True),
        (Paged, {"token_budget": 64}, {}, False),
        (Paged, {}, {"admission": Watermark()}, False),
        (Prefix, {}, {}, False),
    ],
)
def test_what_is_plain(memory, strategy, settings, axes, plain):
    asked = AXES | {"preemption": Recompute()} | axes
    assert simulate.is_plain(strategy(memory(100), 4), Settings(**settings), **asked) is plain
