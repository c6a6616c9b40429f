"""One run: from a resolved configuration to a result. Knows neither Hydra nor W&B."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.build import AXES, build_axis, build_strategy
from kvlab.engine.attentions import limits
from kvlab.engine.capacity import describe, pool_bytes
from kvlab.engine.engine import Engine
from kvlab.engine.speculation import speculation_of
from kvlab.model.load import shape_of
from kvlab.model.shape import Shape
from kvlab.record import files, memory_map, summary
from kvlab.record.goodput import Slo
from kvlab.record.others import BUSY_ABOVE, OthersShare
from kvlab.start import load_library, opened_engine
from kvlab.strategy import Strategy
from kvlab.workload.make import Workload, make
from kvlab.workload.make import describe as describe_workload

if TYPE_CHECKING:  # torch takes two seconds that a refusal need not wait for
    from kvlab.engine.cuda.platform import Platform
    from kvlab.engine.executor import RealExecutor
    from kvlab.model.llama import Llama

Report = Callable[[str], None]
Progress = Callable[[int, int], None]


@dataclass(slots=True, eq=False)
class Plan:
    """What is known of a run before anything heavy is loaded."""

    shape: Shape
    workload: Workload
    strategy: Strategy
    capacity: dict[str, Any]


def plan(config: dict[str, Any], platform: Platform | None = None) -> Plan:
    """Checks the configuration as far as it can without a model; raises UsageError."""
    shape = shape_of(config["model"])
    shape.check_max_len(int(config["max_len"]))
    token_bytes = shape.token_bytes(config["dtype"])
    size = pool_bytes(config, shape, platform.total_bytes if platform else None)
    strategy = build_strategy(config, token_bytes, shape.layers, size)
    for axis in AXES:
        build_axis(config, axis)
    speculation_of(config)
    device = platform.device.type if platform else config["device"]
    limits.check(config["attention"], device, config["dtype"], strategy.block_size, shape.head_dim)
    workload = make(
        config["workload"],
        seed=int(config["seed"]),
        max_len=int(config["max_len"]),
        vocab=shape.vocab,
        temperature=float(config["engine"]["temperature"]),
    )
    return Plan(shape, workload, strategy, describe(strategy, int(config.get("page_group_bytes") or 0)))


def execute(
    config: dict[str, Any],
    directory: Path,
    report: Report | None = None,
    progress: Progress | None = None,
    *,
    model: Llama | None = None,
    platform: Platform | None = None,
) -> dict[str, Any]:
    """Carry the run out; writes its series into `directory` and returns its result (status ok or refused).

    report: called with lines for people. progress: called with (requests ended, requests). model: None: the one
    that the configuration names. platform: what stands for config["device"]; None: that very device.
    """
    say = report or (lambda line: None)
    if config["executor"] == "simulated":
        from kvlab import simulate  # and with it what time costs; a real run has no use for it

        return simulate.execute(config, directory, say, progress)
    if config["device"] == "cpu":
        load_library()
    planned = plan(config, platform)
    say(planned.capacity["line"])
    say(describe_workload(planned.workload))
    if reason := _refusal(planned):
        identity = _identity(config, planned)
        return {**identity, "num_refused": identity["num_requests"], "status": "refused", "reason": reason}
    return {
        **_identity(config, planned),
        "status": "ok",
        "reason": "",
        **_serve(config, planned, directory, say, progress, model, platform),
    }


def _refusal(planned: Plan) -> str:
    """Why not one request can be served; empty when some can."""
    requests, longest = planned.workload.requests, planned.strategy.longest
    if not requests:
        return f"every request is longer than max_len={planned.strategy.memory.max_len:,}"
    least = min(request.limit for request in requests)
    if least <= longest:
        return ""
    unit = "page_group_bytes" if planned.strategy.virtual else "block_size" if planned.strategy.block_size else ""
    too_large = f" or {unit}" if unit and not longest else ""
    return (
        f"no request fits: they may grow to {least:,} tokens or more, the longest that this pool is sure to hold "
        f"is {longest:,}; raise pool_bytes (now {planned.capacity['pool_bytes']:,}) or lower max_len{too_large}"
    )


def _identity(config: dict[str, Any], planned: Plan) -> dict[str, Any]:
    arrivals = {request.arrival_s for request in planned.workload.requests}
    return {
        "strategy": config["strategy"]["name"],
        "executor": config["executor"],
        "device": config["device"],
        "seed": int(config["seed"]),
        "deterministic": arrivals <= {0.0} or config["engine"]["clock"] == "steps",
        "capacity": planned.capacity,
        "workload": planned.workload.info,
        "num_requests": num_requests(planned),
        "num_refused": len(planned.workload.refused),
    }


def num_requests(planned: Plan) -> int:
    """All that came, those included that max_len refuses."""
    return len(planned.workload.requests) + len(planned.workload.refused)


def _serve(
    config: dict[str, Any],
    planned: Plan,
    directory: Path,
    say: Report,
    progress: Progress | None,
    model: Llama | None,
    platform: Platform | None,
) -> dict[str, Any]:
    shape, requests = planned.shape, planned.workload.requests
    count = _counted(progress, len(requests))
    with opened_engine(config, planned.strategy, requests, model=model, platform=platform, progress=count) as engine:
        if line := engine.executor.notice():
            say(line)
        others = OthersShare()
        engine.run()
        told = engine.executor.describe()
        share = others.share()
    import torch  # which the engine brought

    _write(directory, engine)
    metrics = _metrics(config, planned, engine)
    return {
        **({"device_info": told} if told else {}),
        "matrix_product": engine.executor.model.layers[0].qkv.product,
        "threads": torch.get_num_threads(),
        "kernel": engine.executor.kernels.kernel_name(
            getattr(torch, config["dtype"]), shape.head_dim, shape.q_heads // shape.kv_heads
        ),
        **metrics,
        **_step_times(engine, metrics["num_steps"]),
        "others_cpu_share": share,
        "timing_valid": _timed(config) and share is not None and share <= BUSY_ABOVE,
    }


def _timed(config: dict[str, Any]) -> bool:
    """Whether the run's times are meant to be used; a clock that counts steps has none."""
    return bool(config["timing"]) and config["engine"]["clock"] == "wall"


def _counted(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda ended: progress(ended, total)


def _write(directory: Path, engine: Engine[RealExecutor]) -> None:
    ended = engine.scheduler.tally.ended
    files.write_steps(directory / "steps.csv", engine.recorder.rows)
    files.write_requests(directory / "requests.csv", ended)
    if engine.recorder.map is not None:
        engine.recorder.map.write(directory / memory_map.FILE)
    files.write_outputs(directory / "outputs.jsonl", ended, engine.executor.sampler.ties)


def _metrics(config: dict[str, Any], planned: Plan, engine: Engine[RealExecutor]) -> dict[str, Any]:
    totals, tally = engine.recorder.totals, engine.scheduler.tally
    refused = sum(
        sequence.outcome == "refused" for sequence in tally.ended
    )  # has one sequence, however many it asks for
    return {
        **totals.metrics(planned.strategy.memory.bytes),
        **summary.work_metrics(tally, totals.launches, num_requests(planned), Slo.of(config)),
        "num_refused": len(planned.workload.refused) + refused,
        "num_ties": len(set(engine.executor.sampler.ties)),
        "output_digest": summary.output_digest(tally.ended),
        "counts": dict(planned.strategy.counts),
    }


def _step_times(engine: Engine[RealExecutor], launches: int) -> dict[str, float]:
    """Mean microseconds of a step's parts."""
    device = {f"device_{part}": ns for part, ns in engine.executor.device_ns.items()}
    parts = {"allocator": engine.scheduler.metered.ns, **engine.executor.ns, **device}
    return {f"{part}_us_per_step": ns / 1e3 / max(1, launches) for part, ns in parts.items()}
