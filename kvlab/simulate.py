"""One simulated run: from a resolved configuration to a result, on the clock of a GPU that is not there.

The scheduler, the strategy and the accounting are those of a real run; seconds come from kvlab.cost. Memory does not
grow with the number of requests: percentiles are sketched, and of long series neighbours are merged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvlab.build import AXES, build_axis, build_strategy
from kvlab.cost.model import CostModel, build_cost, kv_memory
from kvlab.cost.rank import token_bytes
from kvlab.engine.axes import Admission, Forecast, Limit, Newest, Preemption, PromptPlusOne, Recompute, Victim
from kvlab.engine.capacity import describe, size_text
from kvlab.engine.lanes import Lanes
from kvlab.engine.plain import PlainScheduler
from kvlab.engine.plain_engine import PlainEngine
from kvlab.engine.scheduler import Scheduler
from kvlab.engine.settings import Settings
from kvlab.engine.simulated import SimulatedClock, SimulatedEngine, SimulatedExecutor, SimulatedTime, hashed
from kvlab.engine.speculation import speculation_of
from kvlab.errors import UsageError
from kvlab.model.load import shape_of
from kvlab.model.shape import Shape
from kvlab.record import files
from kvlab.record.batched import BatchedRecorder
from kvlab.record.goodput import Slo
from kvlab.record.memory_map import FILE, MemoryMap
from kvlab.record.outcomes import Outcomes
from kvlab.record.recorder import Recorder
from kvlab.record.series import Thinned
from kvlab.record.step import Step, merged
from kvlab.strategy import Strategy
from kvlab.workload.stream import Stream, stream
from kvlab.workload.stream import describe as describe_workload

SERIES_ROWS = 8192  # of steps.csv, at most
REQUEST_ROWS = 100_000  # of requests.csv: those of the first requests to end

Report = Callable[[str], None]
Progress = Callable[[int, int], None]


@dataclass(slots=True, eq=False)
class Plan:
    """What is known of a run before it begins."""

    shape: Shape
    workload: Stream
    strategy: Strategy
    cost: CostModel
    capacity: dict[str, Any]


def plan(config: dict[str, Any]) -> Plan:
    """Checks the configuration; raises UsageError."""
    shape = shape_of(config["model"])
    max_len = int(config["max_len"])
    shape.check_max_len(max_len)
    each = token_bytes(shape, str(config.get("kv_dtype") or config["dtype"]), int(config["tensor_parallel"]))
    strategy = build_strategy(config, each, shape.layers, _pool_bytes(config, shape, each))
    for axis in AXES:
        build_axis(config, axis)
    if config["engine"]["temperature"]:
        raise UsageError("engine.temperature: allowed with executor=simulated is 0; nothing is sampled")
    vocab = shape.vocab if looks_at_tokens(strategy) else None
    workload = stream(config["workload"], seed=int(config["seed"]), max_len=max_len, vocab=vocab)
    capacity = describe(strategy, int(config.get("page_group_bytes") or 0))
    return Plan(shape, workload, strategy, build_cost(config, shape, strategy), capacity)


def execute(config: dict[str, Any], directory: Path, say: Report, progress: Progress | None) -> dict[str, Any]:
    """Carry the run out; writes its series into `directory` and returns its result (status ok or refused)."""
    planned = plan(config)
    gpu = config["gpu"].get("name")
    say(f"SIMULATED on {gpu}: {planned.capacity['line']}")
    say(describe_workload(planned.workload))
    if reason := refusal(planned):
        count = planned.workload.num_requests
        return {**_identity(config, planned), "num_refused": count, "status": "refused", "reason": reason}
    measured = serve(config, planned, directory, progress)
    return {**_identity(config, planned), "status": "ok", "reason": "", **measured}


def looks_at_tokens(strategy: Strategy) -> bool:
    """Whether it reads token ids: only then are there any."""
    return type(strategy).wrote is not Strategy.wrote or type(strategy).lookup is not Strategy.lookup


def _pool_bytes(config: dict[str, Any], shape: Shape, each: int) -> int:
    """Of one GPU: what the configuration says, or what the GPU leaves beside weights and activations."""
    left = kv_memory(config, shape)
    size = left
    if config.get("pool_bytes") is not None:
        size = int(config["pool_bytes"])
    elif config.get("pool_blocks") is not None:
        size = int(config["pool_blocks"]) * int(config["block_size"]) * each
    gpu, model = config["gpu"].get("name"), config["model"].get("name")
    if left < each:
        raise UsageError(f"gpu={gpu}: model={model} leaves no room for keys and values; raise tensor_parallel")
    if not each <= size <= left:
        allowed = f"{size_text(each)} (one token) to {size_text(left)}, what gpu={gpu} leaves beside model={model}"
        raise UsageError(f"a pool of {size_text(size)}: allowed is {allowed}")
    return size


def refusal(planned: Plan) -> str:
    """Why not one request can be served; empty when some may be."""
    if next(planned.workload.times(), None) is None:
        return f"every request is longer than max_len={planned.strategy.memory.max_len:,}"
    least, longest = planned.workload.least_limit, planned.strategy.longest
    if least <= longest:
        return ""
    return (
        f"no request fits: they may grow to {least:,} tokens, the longest that this pool is sure to hold is "
        f"{longest:,}; raise pool_bytes (now {planned.capacity['pool_bytes']:,}) or lower max_len"
    )


def _identity(config: dict[str, Any], planned: Plan) -> dict[str, Any]:
    return {
        "strategy": config["strategy"]["name"],
        "executor": "simulated",
        "simulated": True,
        "gpu": config["gpu"].get("name"),
        "model": config["model"].get("name"),
        "tensor_parallel": int(config["tensor_parallel"]),
        "device": config["device"],
        "seed": int(config["seed"]),
        "deterministic": True,
        "capacity": planned.capacity,
        "workload": planned.workload.about,
        "num_requests": planned.workload.num_requests,
    }


def serve(config: dict[str, Any], planned: Plan, directory: Path, progress: Progress | None) -> dict[str, Any]:
    """The requests of a plan, to the last one; what was found, and the files of the series in `directory`."""
    with files.request_writer(directory / "requests.csv") as write:
        outcomes, series = Outcomes(write, REQUEST_ROWS, Slo.of(config)), Thinned(SERIES_ROWS, merged)
        engine = make_engine(config, planned, outcomes, series, progress)
        engine.run()
    files.write_step_block(directory / "steps.csv", series.rows(len(Step._fields)))
    if engine.recorder.map is not None:
        engine.recorder.map.write(directory / FILE)
    (directory / "outputs.jsonl").write_text("")  # nothing was said
    summed, tally, totals = planned.workload.lengths.summary(), engine.scheduler.tally, engine.recorder.totals
    return {
        **totals.metrics(planned.strategy.memory.bytes),
        **outcomes.metrics(tally, totals.launches, planned.workload.num_requests),
        "workload": {**planned.workload.about, **summed},
        "num_refused": summed["num_refused"] + outcomes.count["refused"],
        "counts": dict(planned.strategy.counts),
        "timing_valid": True,  # the clock only counts
    }


def make_engine(
    config: dict[str, Any],
    planned: Plan,
    outcomes: Outcomes,
    series: Thinned,
    progress: Progress | None = None,
) -> SimulatedEngine | PlainEngine:
    """The engine of a plan, not run yet; the fast one where it decides the same."""
    strategy, workload, axes = planned.strategy, planned.workload, {axis: build_axis(config, axis) for axis in AXES}
    settings, clock, times = Settings.of(config["engine"]), SimulatedClock(), workload.times()
    told = None if progress is None else lambda ended: progress(ended, workload.num_requests)
    tokens, seen = hashed(planned.shape.vocab), MemoryMap.of(strategy, config["engine"].get("memory_map", 0))
    speculation = speculation_of(config, tokens)
    if speculation is None and workload.batches is not None and is_plain(strategy, settings, **axes):
        plain = PlainScheduler(strategy, outcomes.add_all, settings.max_preemptions)
        recorder = BatchedRecorder(strategy, series) if seen is None else Recorder(strategy, None, series, seen)
        return PlainEngine(workload.batches(), times, plain, SimulatedTime(planned.cost, clock), recorder, told)
    lanes = Lanes(strategy.memory.max_seqs, strategy.memory.max_len, with_ids=looks_at_tokens(strategy))
    scheduler = Scheduler(strategy, lanes, settings=settings, speculation=speculation, on_end=outcomes.add, **axes)
    executor, whole = SimulatedExecutor(planned.cost, lanes, clock, tokens), Recorder(strategy, None, series, seen)
    return SimulatedEngine(workload.requests(), times, scheduler, executor, whole, told)


def is_plain(
    strategy: Strategy,
    settings: Settings,
    *,
    admission: Admission,
    victim: Victim,
    forecast: Forecast,
    preemption: Preemption,
) -> bool:
    """Whether PlainScheduler decides as these say, of requests of one sequence each and of one priority."""
    kind = type(strategy)
    told = kind.wrote is not Strategy.wrote or kind.lookup is not Strategy.lookup
    axes = (type(admission), type(victim), type(forecast), type(preemption))
    return not told and settings.token_budget is None and axes == (PromptPlusOne, Newest, Limit, Recompute)
