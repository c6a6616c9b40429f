"""A sweep's directory: which run lies where, what has become of it, and sweep.json that says so to scripts."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvlab.errors import UsageError
from kvlab.harness import identity, rundir
from kvlab.harness.output import writing

if TYPE_CHECKING:
    from kvlab.harness.plan import Planned

MANIFEST, LOCK = "sweep.json", ".lock"
SECONDS_BETWEEN = 1.0  # two writings of sweep.json


class Again(NamedTuple):
    """Which runs that ended before are done again, beside those of other code."""

    finished: bool = False
    failed: bool = False


class Manifest:
    """The runs of a sweep, found again by what they are and not by what their directory is called."""

    def __init__(
        self,
        directory: Path,
        runs: Sequence[Planned],
        overrides: Sequence[str],
        typed_in: Path,
        again: Again | None = None,
    ) -> None:
        self.directory, self.runs, self.overrides, self.typed_in = directory, runs, list(overrides), typed_in
        there = ended_below(directory)
        self.places = [there.get(run.key) or _place(directory, run) for run in runs]
        self.stale = 0  # that ended before, by other code
        self.statuses = [
            self._status(place, run, again or Again()) for place, run in zip(self.places, runs, strict=True)
        ]
        self.saved = 0.0
        self.save()

    def _status(self, place: Path, run: Planned, again: Again) -> str:
        """What became of the run; waiting, where it is to be done (again)."""
        result = rundir.read_result(place)
        if result is None or rundir.read_json(place / rundir.CONFIG) != rundir.plain(run.config):
            return "waiting"
        if result.get("code") != identity.code(run.config):
            self.stale += 1
            return "waiting"
        repeated = again.finished if result["status"] in rundir.FINISHED else again.failed
        return "waiting" if repeated else str(result["status"])

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
        return [run for run, s in zip(self.runs, self.statuses, strict=True) if s == "waiting"]

    def prepare(self, run: Planned) -> Path:
        """The run's directory, ready for it. A result that is there is kept apart, where no table looks."""
        place = self.places[self.runs.index(run)]
        if rundir.is_finished(place):
            self._keep(place)
        rundir.prepare(place, run.config, run.overrides)
        return place

    def ended(self, directory: Path) -> dict[str, Any]:
        """Take note of how the run in `directory` ended; its result."""
        result = rundir.read_result(directory)
        assert result
        self.statuses[self.places.index(directory)] = result["status"]
        if time.monotonic() - self.saved > SECONDS_BETWEEN or not self.count("waiting"):
            self.save()
        return result

    def _keep(self, place: Path) -> None:
        earlier = self.directory / rundir.EARLIER
        earlier.mkdir(exist_ok=True)
        names = (earlier / f"{place.name}-{number}" for number in itertools.count(1))
        place.rename(next(name for name in names if not name.exists()))

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
        self.saved = time.monotonic()


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One sweep in a directory at a time. Raises UsageError if there is another, or it cannot be written; OSError: the
    disk is full.
    """
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK).open("w")
    with file:
        try:
            with rundir.unless_unsupported():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{directory}: another sweep is running there; choose another directory") from error
        yield


def ended_below(directory: Path) -> dict[str, Path]:
    """Runs that have a result, by their configuration; of several with one, a finished one."""
    places = [path.parent for path in sorted(directory.glob(f"*/{rundir.CONFIG}"))]
    ended = sorted((place for place in places if rundir.read_result(place)), key=rundir.is_finished)
    return {rundir.fingerprint(rundir.read_json(place / rundir.CONFIG)): place for place in ended}


def _place(directory: Path, run: Planned) -> Path:
    """Where the run goes; beside one of the same label that is something else."""
    place = directory / run.label
    if not place.exists() or (place.is_dir() and rundir.is_blank(place)):
        return place
    if rundir.read_json(place / rundir.CONFIG) == rundir.plain(run.config):
        return place
    return directory / f"{run.label}-{run.key[:8]}"
