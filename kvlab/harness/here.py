"""The runs of a sweep on this machine: those whose times count alone, others side by side, as many as fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlab.harness.launch import run_all
from kvlab.harness.provenance import available_bytes, cores

if TYPE_CHECKING:
    from kvlab.harness.follow import Follow
    from kvlab.harness.limits import Limits
    from kvlab.harness.manifest import Manifest
    from kvlab.harness.plan import Planned

BESIDE_THE_POOL = 2**30  # bytes: weights with Python and torch, at most


def carry_out(manifest: Manifest, follow: Follow, limits: Limits, jobs: int | None) -> None:
    """What the sweep still waits for. jobs: at once, where that does no harm; None: as many as fit."""
    waiting = manifest.waiting()
    simulated = [run for run in waiting if is_simulated(run)]  # their clock only counts, whoever else is running
    real = [run for run in waiting if not is_simulated(run)]
    timed, loose = [run for run in real if run.config["timing"]], [run for run in real if not run.config["timing"]]
    for runs, width in ((timed, 1), (loose, jobs or at_once(loose)), (simulated, jobs or at_once(simulated))):
        prepared = (follow.began(manifest.prepare(run)) for run in runs)
        run_all(prepared, width, follow.event, follow.end, limits, warm=runs is simulated)


def at_once(runs: list[Planned]) -> int:
    """As many as there are cores, and as fit into memory."""
    if not runs:
        return 1
    memory = available_bytes()
    fitting = len(runs) if memory is None else memory // (max(map(pool_of, runs)) + BESIDE_THE_POOL)
    return max(1, min(cores(), len(runs), fitting))


def is_simulated(run: Planned) -> bool:
    return run.config.get("executor") == "simulated"


def pool_of(run: Planned) -> int:
    """Bytes that its keys and values take in memory."""
    if is_simulated(run):
        return 0  # a pool that is only counted
    from kvlab.engine.capacity import pool_bytes
    from kvlab.model.load import shape_of

    given = run.config["pool_bytes"]  # without it, the model's sizes decide
    return int(given or pool_bytes(run.config, shape_of(run.config["model"])))
