"""The engine on the device over a random-weight Llama-3-8B shape: growth, page groups, and strategies side by side."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from common import Scale, config, contiguous, model_of, open_device, paged, scale, vattention

from kvlab.engine.cuda.platform import Platform
from kvlab.engine.real import real_engine
from kvlab.model.llama import Llama
from kvlab.run import execute, plan

SPIKE = 1.25  # a step that takes so many times the median


def growth(report: Any) -> None:
    """Decode steps of rows that grow, mapped before the launch or beside it (vAttention, Fig. 12)."""
    platform, sizes, model = _opened(report)
    if report.rehearsal:  # a page group of one layer holds 16 tokens: every sequence crosses into the next
        sizes = sizes._replace(prompts=(12, 14), outputs=(6, 8))
    else:  # as 1,024 here
        sizes = sizes._replace(requests=32, max_seqs=32, prompts=(800, 1000), outputs=(260, 300))
    for map_ahead in (0, 1):
        settings = config(sizes, vattention(map_ahead=map_ahead))
        settings["pool_bytes"] *= 2
        step_ms, counts = _steps(settings, model, platform)
        median = float(np.median(step_ms))
        report.add(
            map_ahead=map_ahead,
            steps=len(step_ms),
            median_ms=round(median, 3),
            **{f"p{q}_ms": round(float(np.percentile(step_ms, q)), 3) for q in (95, 99)},
            max_ms=round(max(step_ms), 3),
            spikes=int((np.array(step_ms) > SPIKE * median).sum()),
            mapped_before=counts["before"],
            mapped_beside=counts["beside"],
            step_ms=[round(ms, 3) for ms in step_ms],
        )


def page_groups(report: Any) -> None:
    """The same requests with page groups of several sizes, of one layer each and of all layers side by side."""
    platform, sizes, model = _opened(report)
    sizes = sizes._replace(max_seqs=min(sizes.max_seqs, 16), requests=min(sizes.requests, 24))
    for layout in ("per_layer", "sliced"):
        for page in sizes.pages[::2]:
            settings = config(sizes, vattention(layout), page_group_bytes=page)
            _serve(report, settings, model, platform, page_group_bytes=page, layout=layout)


def end_to_end(report: Any) -> None:
    """Equal bytes, each strategy, each attention."""
    platform, sizes, model = _opened(report)
    strategies = {
        "contiguous": contiguous(),
        **{f"paged {size}": paged(size) for size in ((4, 8) if report.rehearsal else (16, 64))},
        "vattention": vattention(map_ahead=1),
        "vattention sliced": vattention("sliced", map_ahead=1),
    }
    for attention in ("kvlab", "sdpa"):
        for name, strategy in strategies.items():
            _serve(report, config(sizes, strategy, attention), model, platform, run=name, attention=attention)


def _opened(report: Any) -> tuple[Platform, Scale, Llama]:
    platform = open_device(report.rehearsal)
    sizes = scale(report.rehearsal, platform.total_bytes)
    return platform, sizes, model_of(sizes, platform)


def _serve(report: Any, settings: dict[str, Any], model: Llama, platform: Platform, **names: Any) -> None:
    """A row of what a run says of itself; a run that breaks is a row too."""
    with tempfile.TemporaryDirectory() as folder:
        began = perf_counter()
        try:
            result = execute(settings, Path(folder), model=model, platform=platform)
        except Exception as error:
            report.add(**names, status="failed", reason=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            if "CUDA error" in str(error) or "ILLEGAL_ADDRESS" in str(error):
                raise  # nothing works after that
            return
        finally:
            _let_go()
    told = result.get("device_info", {})
    parts = {key: round(value, 1) for key, value in result.items() if key.endswith("_us_per_step")}
    report.add(
        **names,
        status=result["status"],
        reason=result["reason"],
        tokens_per_s=result.get("tokens_per_s"),
        mean_batch=result.get("mean_batch_size"),
        utilization=result.get("utilization"),
        steps=result.get("num_steps"),
        preemptions=result.get("num_preemptions"),
        os_committed_bytes=result.get("os_committed_bytes"),
        pool_bytes=result["capacity"]["pool_bytes"],
        layers=settings["model"]["layers"],
        cuda_graphs=told.get("cuda_graphs"),
        graphs=told.get("graphs"),
        digest=result.get("output_digest"),
        wall_s=round(perf_counter() - began, 2),
        **parts,
    )


def _steps(settings: dict[str, Any], model: Llama, platform: Platform) -> tuple[list[float], dict[str, int]]:
    """Milliseconds of each step in which everybody decodes, from its moves to its tokens.

    And how many moves were carried out before such steps, and beside all of them.
    """
    planned, took, counts = plan(settings, platform), [], {"before": 0, "beside": 0}
    requests = planned.workload.requests
    with real_engine(settings, model, planned.strategy, requests, platform=platform) as engine:
        run = engine.executor.run

        def timed(moves: Any, launch: Any) -> Any:
            begin = perf_counter()
            tokens = run(moves, launch)
            if (launch.stop_B - launch.start_B == 1).all():
                took.append(1e3 * (perf_counter() - begin))
                counts["before"] += len(moves)
            counts["beside"] += len(launch.beside)
            return tokens

        engine.executor.run = timed
        engine.run()
    del engine
    _let_go()
    return took, counts


def _let_go() -> None:
    """Of what the last run's graphs and activations took, so that the next one finds as much memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
