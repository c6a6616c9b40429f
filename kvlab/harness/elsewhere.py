"""The runs of a sweep as jobs of a cluster: handed over, watched through the shared folder, taken back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.harness import rundir
from kvlab.harness.clusters import Cluster, Job, cluster_of
from kvlab.harness.here import at_once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvlab.harness.follow import Follow
    from kvlab.harness.limits import Limits
    from kvlab.harness.manifest import Manifest
    from kvlab.harness.plan import Planned

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_APPEAR = 20  # what another machine wrote, in a shared folder


def carry_out(
    manifest: Manifest, follow: Follow, limits: Limits, launcher: Mapping[str, Any], jobs: int | None, each: int
) -> None:
    """What the sweep still waits for. jobs: at once; None: the cluster decides. each: runs in one job."""
    waiting = manifest.waiting()
    if not waiting:
        return
    cluster = cluster_of(launcher, jobs or at_once(waiting))
    chunks = [waiting[start : start + each] for start in range(0, len(waiting), each)]
    watch = Watch(manifest, follow, limits, cluster, jobs or cluster.width or len(chunks))
    try:
        watch.work(chunks)
    except BaseException:
        for job in watch.jobs:
            job.cancel()
        raise
    finally:
        cluster.close()


class Watch:
    """Jobs that are under way, and the runs of each that have no result yet."""

    def __init__(self, manifest: Manifest, follow: Follow, limits: Limits, cluster: Cluster, width: int) -> None:
        self.manifest, self.follow, self.limits, self.cluster, self.width = manifest, follow, limits, cluster, width
        self.jobs: dict[Job, list[Path]] = {}
        self.gone: dict[Job, float] = {}  # when it was seen that a job had ended

    def work(self, chunks: list[list[Planned]]) -> None:
        while chunks or self.jobs:
            room = self.width - len(self.jobs)
            if chunks and room > 0:
                self._submit(chunks[:room])
                del chunks[:room]
            for job in list(self.jobs):
                self._look(job)
            if self.jobs:
                time.sleep(SECONDS_BETWEEN_LOOKS)

    def _submit(self, chunks: list[list[Planned]]) -> None:
        places = [[self._prepared(run) for run in chunk] for chunk in chunks]
        self.jobs |= dict(zip(self.cluster.submit(places, self.limits), places, strict=True))

    def _prepared(self, run: Planned) -> Path:
        """Raises UsageError where a job of an earlier sweep, which was killed, is still at it."""
        with rundir.claimed(self.manifest.places[self.manifest.runs.index(run)]):
            return self.follow.began(self.manifest.prepare(run))

    def _look(self, job: Job) -> None:
        how = job.ended()  # before the results are looked for, which it wrote before that
        places = self.jobs[job] = [place for place in self.jobs[job] if not self._taken(place)]
        if how and places and time.monotonic() - self.gone.setdefault(job, time.monotonic()) > SECONDS_TO_APPEAR:
            for place in places:
                rundir.fail(place, f"crash: {how}")
                self._taken(place)
            places.clear()
        if not places:
            del self.jobs[job]

    def _taken(self, place: Path) -> bool:
        """Whether there is a result, which the sweep then knows."""
        result = rundir.read_result(place)
        if result is None:
            return False
        self.follow.end(place, rundir.EXITS[result["status"]])
        return True
