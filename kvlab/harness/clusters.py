"""Jobs on other machines: Slurm through submitit, and Ray. The settings of each are those of Hydra's launcher.

The settings are composed by Hydra (`hydra/launcher=submitit_slurm hydra.launcher.partition=gpu`), so its plugin has to
be installed; what starts the jobs is this file. A job takes run directories and does what `kvlab.harness.remote` says.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kvlab.errors import UsageError
from kvlab.harness.limits import Limits
from kvlab.harness.remote import carry_out

EXTRAS = {"submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}
OF_EVERY_CLUSTER = ("cpus_per_task", "gpus_per_node", "mem_gb", "name", "nodes", "stderr_to_stdout", "tasks_per_node",
                    "timeout_min")  # submitit knows these without a prefix  # fmt: skip
OBJECT_STORE_BYTES = 75 * 2**20  # of a Ray that we start ourselves, the least: nothing goes through it


class Job(Protocol):
    """Some runs that were handed over."""

    def ended(self) -> str:
        """How, in words; empty while it waits or runs."""

    def cancel(self) -> None: ...


class Cluster(Protocol):
    width: int | None  # jobs that may be there at once; None: it queues them itself

    def submit(self, chunks: Sequence[list[Path]], limits: Limits) -> list[Job]: ...

    def close(self) -> None: ...


def missing(name: str) -> str:
    """Why hydra/launcher=NAME cannot be composed."""
    if name in EXTRAS:
        return f"it is not installed: pip install 'kvlab[{EXTRAS[name]}]'"
    return f"allowed is basic (this machine), {', '.join(EXTRAS)}"


def cluster_of(launcher: Mapping[str, Any], width: int) -> Cluster:
    """The one that hydra/launcher names. width: jobs at once on this machine. Raises UsageError."""
    name = launcher["launcher"]
    if name not in EXTRAS:
        raise UsageError(f"hydra/launcher={name}: {missing(name)}")
    settings = {key: value for key, value in launcher.items() if key != "launcher"}
    try:
        return Ray(settings["ray"]) if name == "ray" else Submitit(name.removeprefix("submitit_"), settings, width)
    except (ImportError, RuntimeError, ValueError, TypeError) as error:
        raise UsageError(f"hydra/launcher={name}: {' '.join(str(error).split())}") from error


class Submitit:
    """kind: slurm; or local, which starts a process for each job at once."""

    def __init__(self, kind: str, settings: dict[str, Any], width: int) -> None:
        import submitit

        if settings.get("tasks_per_node", 1) != 1 or settings.get("nodes", 1) != 1:
            raise UsageError("hydra.launcher.nodes and tasks_per_node: allowed is 1; a run is one process")
        self.folder = settings.pop("submitit_folder")
        retries = {f"{kind}_max_num_timeout": settings.pop("max_num_timeout")} if "max_num_timeout" in settings else {}
        self.executor = submitit.AutoExecutor(folder=self.folder, cluster=kind, **retries)
        given = {key: value for key, value in settings.items() if value is not None}
        named = {key if key in OF_EVERY_CLUSTER else f"{kind}_{key}": value for key, value in given.items()}
        self.executor.update_parameters(**named)
        self.width: int | None = width if kind == "local" else None

    def submit(self, chunks: Sequence[list[Path]], limits: Limits) -> list[Job]:
        """One array of jobs."""
        names = [[str(directory.absolute()) for directory in chunk] for chunk in chunks]
        jobs = self.executor.map_array(carry_out, names, [limits] * len(names))
        return [SubmititJob(job, self.folder) for job in jobs]

    def close(self) -> None:
        """Nothing stays open."""


class SubmititJob:
    def __init__(self, job: Any, folder: str) -> None:
        self.job, self.folder = job, folder

    def ended(self) -> str:
        if not self.job.done():
            return ""
        return f"job {self.job.job_id} ended ({self.job.state}); what it printed is in {self.folder}"

    def cancel(self) -> None:
        self.job.cancel()


class Ray:
    width: int | None = None  # Ray starts as many as it has CPUs for

    def __init__(self, settings: dict[str, Any]) -> None:
        import ray

        start = {key: value for key, value in settings["init"].items() if value is not None}
        if "address" not in start:
            start = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False, **start}
        told_to_end = signal.getsignal(signal.SIGTERM)
        ray.init(**start)
        signal.signal(signal.SIGTERM, told_to_end)  # Ray's own would end the sweep without a word
        self.task = ray.remote(**settings["remote"])(carry_out) if settings["remote"] else ray.remote(carry_out)

    def submit(self, chunks: Sequence[list[Path]], limits: Limits) -> list[Job]:
        names = [[str(directory.absolute()) for directory in chunk] for chunk in chunks]
        return [RayJob(self.task.remote(chunk, limits)) for chunk in names]

    def close(self) -> None:
        import ray

        ray.shutdown()


class RayJob:
    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def ended(self) -> str:
        import ray

        if not ray.wait([self.reference], timeout=0)[0]:
            return ""
        try:
            ray.get(self.reference)
        except Exception as error:  # whatever the task or its node died of
            return f"its Ray task failed: {' '.join(str(error).split())[-300:]}"
        return "its Ray task ended"

    def cancel(self) -> None:
        import ray

        ray.cancel(self.reference, force=True)
