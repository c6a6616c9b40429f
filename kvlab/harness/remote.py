"""What a job on another machine does: the runs in some directories, one after the other, as the sweep would here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kvlab.harness import rundir
from kvlab.harness.launch import run_all
from kvlab.harness.limits import Limits


def carry_out(directories: Sequence[str], limits: Limits) -> None:
    """Each run in a process that is held to its limits and recorded, whatever becomes of it."""
    places = [Path(name) for name in directories]
    configs = [rundir.read_json(place / rundir.CONFIG) or {} for place in places]
    warm = all(config.get("executor") == "simulated" for config in configs)
    run_all(_claimed(places), 1, _log, lambda *_: None, limits, warm)


def _claimed(places: Iterable[Path]) -> Iterator[Path]:
    """One after the other, each held until the next is asked for.

    A run that has a result is left out: a job that waited in a queue may come after one that replaced it.
    """
    for place in places:
        with rundir.claimed(place, wait=True):
            if rundir.read_result(place) is None:
                yield place


def _log(directory: Path, event: dict[str, Any]) -> None:
    if "line" in event:
        rundir.log(directory, event["line"])
