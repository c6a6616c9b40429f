"""Goodput of a run by the second, and who was served within its limits (slo.ttft_s, slo.tpot_s), from requests.csv."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvlab.errors import UsageError
from kvlab.harness.results import Run
from kvlab.harness.rundir import REQUESTS
from kvlab.record.goodput import Slo


@dataclass(frozen=True)
class Served:
    """The sequences of a run's requests, in order of arrival; NaN where there was no first or last token."""

    id_N: NDArray[np.float64]  # of the request
    arrival_N: NDArray[np.float64]
    first_N: NDArray[np.float64]
    finish_N: NDArray[np.float64]
    output_N: NDArray[np.float64]  # tokens
    prompt_N: NDArray[np.float64]
    preemptions_N: NDArray[np.float64]
    branch_N: NDArray[np.float64]  # which of its request's sequences

    @property
    def ttft_s(self) -> NDArray[np.float64]:
        return self.first_N - self.arrival_N

    @property
    def tpot_s(self) -> NDArray[np.float64]:
        """Seconds for each token after the first; 0 where there is one token only."""
        return np.asarray((self.finish_N - self.first_N) / np.maximum(self.output_N - 1, 1))

    def within(self, ttft_s: float | None, tpot_s: float | None) -> NDArray[np.bool_]:
        """Who finished and kept within both limits, each None where there is no such limit."""
        slo = Slo.of({"slo": {"ttft_s": ttft_s, "tpot_s": tpot_s}})
        kept_N = slo.kept(self.arrival_N, self.first_N, self.finish_N, self.output_N)
        return np.asarray(np.isfinite(self.finish_N) & kept_N)


@dataclass(frozen=True)
class Goodput:
    """Of a whole run: how many of its requests kept within the limits, and how many of those came in a second."""

    share: float
    per_s: float


def served(directory: Path) -> Served:
    """Raises UsageError where the run left no requests."""
    path = directory / REQUESTS
    if not path.exists():
        raise UsageError(f"{directory}: no {REQUESTS} there; goodput needs the requests of a finished run")
    with path.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["id"]))
    columns = ("id", "arrival_s", "first_token_s", "finish_s", "output_len", "prompt_len", "preemptions", "branch")
    return Served(
        *(np.array([float(row[column] or "nan") if column in row else 0.0 for row in rows]) for column in columns)
    )


def goodput(run: Run) -> Goodput:
    """By the run's own limits. A request that was refused or failed counts as one that came and was not served well;
    one with several sequences was served well if all of them were.

    A second is one of the time in which requests came: what is served after that is served late.
    Raises UsageError where all of them came at once, or not all are in the file.
    """
    requests = served(run.path)
    ids = np.unique(requests.id_N)
    if len(ids) < int(run.values["num_finished"]):
        raise UsageError(f"{run.path}: {REQUESTS} holds the first requests alone; lower workload.num_requests")
    came_s = float(np.ptp(requests.arrival_N)) if len(requests.arrival_N) else 0.0
    if not came_s:
        raise UsageError(f"{run.path}: all requests came at once; goodput needs workload.rate")
    good_N = requests.within(run.config.get("slo.ttft_s"), run.config.get("slo.tpot_s"))
    good = len(ids) - len(np.unique(requests.id_N[~good_N]))
    return Goodput(good / int(run.values["num_requests"]), good / came_s)
