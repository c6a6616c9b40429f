"""A sweep's directory: which run lies where, what has become of it, and sweep.json that says so to scripts."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.errors import UsageError
from kvlab.harness import rundir

if TYPE_CHECKING:
    from kvlab.harness.plan import Planned

MANIFEST, LOCK = "sweep.json", ".lock"


class Manifest:
    """The runs of a sweep, found again by what they are and not by what their directory is called."""

    def __init__(self, directory: Path, runs: Sequence[Planned], overrides: Sequence[str], typed_in: Path) -> None:
        self.directory, self.runs, self.overrides, self.typed_in = directory, runs, list(overrides), typed_in
        there = _finished_below(directory)
        self.places = [there.get(run.key) or _place(directory, run) for run in runs]
        self.statuses = ["waiting" if run.key not in there else _status(there[run.key]) for run in runs]
        self.save()

    @staticmethod
    def started_with(directory: Path) -> tuple[list[str], Path]:
        """The overrides of the sweep in `directory`, and where they were typed. Raises UsageError if there is none."""
        manifest = rundir.read_json(directory / MANIFEST)
        if not isinstance(manifest, dict) or not isinstance(manifest.get("overrides"), list):
            raise UsageError(f"{directory}: no {MANIFEST} there; give the directory of a sweep")
        return [str(line) for line in manifest["overrides"]], Path(str(manifest.get("typed_in", ".")))

    def finished(self) -> list[Path]:
        return [p for p, s in zip(self.places, self.statuses, strict=True) if s in rundir.FINISHED]

    def waiting(self) -> list[Planned]:
        return [run for run, s in zip(self.runs, self.statuses, strict=True) if s not in rundir.FINISHED]

    def prepare(self, run: Planned) -> Path:
        """The run's directory, ready for it."""
        place = self.places[self.runs.index(run)]
        rundir.prepare(place, run.config, run.overrides)
        return place

    def ended(self, directory: Path) -> dict[str, Any]:
        """Take note of how the run in `directory` ended; its result."""
        result = rundir.read_result(directory)
        assert result
        self.statuses[self.places.index(directory)] = result["status"]
        self.save()
        return result

    def count(self, *statuses: str) -> int:
        return sum(status in statuses for status in self.statuses)

    def failures(self) -> list[str]:
        """A line for each run that failed."""
        failed = [p for p, s in zip(self.places, self.statuses, strict=True) if s == "failed"]
        return [f"failed: {path.name}: {(rundir.read_result(path) or {}).get('reason')}" for path in failed]

    def save(self) -> None:
        runs = [
            {"directory": place.name, "label": run.label, "status": status, "overrides": list(run.overrides)}
            for run, place, status in zip(self.runs, self.places, self.statuses, strict=True)
        ]
        overrides = [line for line in self.overrides if not line.startswith("hydra.sweep.dir=")]
        content = {"schema_version": 1, "overrides": overrides, "typed_in": str(self.typed_in), "runs": runs}
        rundir.write_json(self.directory / MANIFEST, content)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One sweep in a directory at a time. Raises UsageError if there is another, or it cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK).open("w")
    except OSError as error:
        raise UsageError(f"{directory}: cannot write there: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"{directory}: another sweep is running there; choose another directory") from error
        yield


def _finished_below(directory: Path) -> dict[str, Path]:
    """Finished runs by what they are."""
    places = [path.parent for path in sorted(directory.glob(f"*/{rundir.CONFIG}"))]
    finished = [place for place in places if rundir.is_finished(place)]
    return {rundir.fingerprint(rundir.read_json(place / rundir.CONFIG)): place for place in finished}


def _place(directory: Path, run: Planned) -> Path:
    """Where the run goes; beside one of the same label that is something else."""
    place = directory / run.label
    if not place.exists() or rundir.read_json(place / rundir.CONFIG) == rundir.plain(run.config):
        return place
    return directory / f"{run.label}-{run.key[:8]}"


def _status(directory: Path) -> str:
    return str((rundir.read_result(directory) or {})["status"])
