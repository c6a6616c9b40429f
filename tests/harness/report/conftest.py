"""Run directories made up for tests: what a strategy's own books say of a queue, without a model behind it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOKEN, POOL_TOKENS = 1024, 4096
COLUMNS = (
    "step", "time_s", "dt_s", "running", "waiting", "prefill_tokens", "decode_seqs",
    "token_state", "reservation", "internal", "cached", "external", "held", "backed",
)  # fmt: skip
SHARES = {  # token state, reservation, internal
    "contiguous": (0.10, 0.05, 0.80),
    "paged": (0.90, 0.02, 0.01),
    "vattention": (0.80, 0.10, 0.02),
}


def result(strategy: str, seed: int, config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    token, reservation, internal = SHARES.get(strategy, (0.5, 0.1, 0.1))
    workload = {"name": "lognormal", "num_requests": 32}
    return {
        "schema_version": 1, "status": "ok", "reason": "", "strategy": strategy, "executor": "real",
        "deterministic": True, "seed": seed, "overrides": [f"strategy={strategy}", f"seed={seed}"],
        "config": {
            "strategy": {"name": strategy}, "model": {"name": "tiny"}, "workload": workload, "max_len": 512,
            "pool_bytes": TOKEN * POOL_TOKENS, "dtype": "float32", "seed": seed, "timing": True, **config,
        },
        "tokens_per_s": 1000.0 * token + 1.0 * seed, "utilization": token, "utilization.whole": token / 2,
        "allocated_utilization": token / (token + reservation + internal), "pool_usage": token + reservation + internal,
        "waste": {
            "reservation": reservation, "internal": internal, "cached": 0.0,
            "external": 1 - token - reservation - internal,
        },
        "peak_committed_bytes": TOKEN * POOL_TOKENS, "num_preemptions": 2, "num_refused": 0, "num_ties": 0,
        "mean_batch_size": 40 * token, "ttft_s": {"mean": 0.5, "p50": 0.4, "p99": 1.5}, "timing_valid": True,
        "output_digest": f"{seed:02d}aabbccddeeff00", "num_steps": 3,
        "machine": {"cpu": "a test machine", "cores": 2}, "kernel": "reference",
        "versions": {"commit": "0123456789abcdef", "dirty": True}, "workload": {"source": "drawn"},
        "capacity": {"pool_bytes": TOKEN * POOL_TOKENS, "pool_tokens": POOL_TOKENS, "page_group_tokens": None},
        **changes,
    }  # fmt: skip


def steps(strategy: str, count: int = 40) -> list[dict[str, float]]:
    """A pool that fills up, stays full and drains."""
    token, reservation, internal = SHARES.get(strategy, (0.5, 0.1, 0.1))
    pool, rows = TOKEN * POOL_TOKENS, []
    for step in range(count):
        full = min(1.0, (step + 1) / 5, (count - step) / 8)
        parts = [int(pool * full * share) for share in (token, reservation, internal)]
        held = sum(parts)
        dt = 0.01 / token
        row = [step, dt * (step + 1), dt, 4, count - step, 0, 4, *parts, 0, pool - held, held, pool]
        rows.append(dict(zip(COLUMNS, row, strict=True)))
    return rows


Builder = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path: Path) -> Builder:
    """write_run(name, strategy, seed, config={...}, **changes of the result) -> the run directory."""

    def write(
        name: str, strategy: str = "paged", seed: int = 0, config: dict[str, Any] | None = None, **changes: Any
    ) -> Path:
        path = tmp_path / "sweep" / name
        path.mkdir(parents=True)
        (path / "result.json").write_text(json.dumps(result(strategy, seed, config or {}, changes)))
        with (path / "steps.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(steps(strategy))
        return path

    return write


@pytest.fixture
def sweep(write_run: Builder) -> Path:
    """Three strategies at equal bytes, three seeds each."""
    for seed in (0, 1, 2):
        write_run(f"contiguous-{seed}", "contiguous", seed)
        write_run(f"paged-{seed}", "paged", seed, {"block_size": 16})
        path = write_run(f"vattention-{seed}", "vattention", seed, {"page_group_bytes": 65536})
    return path.parent
