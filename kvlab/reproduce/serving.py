"""Runs in this process, for what a result file does not hold: each step of a saturated run, or one run's metrics."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlab import simulate
from kvlab.engine.columns import Ended
from kvlab.engine.sequence import Sequence
from kvlab.record.outcomes import Outcomes
from kvlab.record.series import Thinned
from kvlab.record.step import Step, merged
from kvlab.reproduce.frame import Lab

SIMULATED = ["executor=simulated", "dtype=bfloat16", "timing=false"]
WARM_UP = 300  # steps
EVERY_ROW = 1 << 24  # more than any run here has, so that no two are merged


@dataclass(frozen=True)
class Steps:
    """Rows of a run, in columns named as in kvlab.record.step.Step."""

    rows: NDArray[np.float64]
    pool_bytes: int

    def column(self, name: str) -> NDArray[np.float64]:
        return self.rows[:, Step._fields.index(name)]

    def share(self, part: str) -> float:
        """Percent of the pool, each step counting once."""
        return 100 * float(self.column(part).mean()) / self.pool_bytes

    def batch(self) -> float:
        """Sequences on the device, each step counting once."""
        return float(self.column("running").mean())

    def batch_of_iterations(self) -> float:
        """The same where prompts are launches of their own: a step that computes both counts as two."""
        running, decoding = self.column("running"), self.column("decode_seqs")
        prompts = running - decoding
        sizes = np.concatenate((prompts[prompts > 0], decoding[decoding > 0]))
        return float(sizes.mean())


class Nobody:
    """Requests that have ended are written down nowhere."""

    def one(self, sequence: Sequence) -> None:
        pass

    def many(self, ended: Ended, most: int) -> None:
        pass


def saturated(lab: Lab, overrides: list[str], warm_up: int = WARM_UP) -> Steps:
    """A run whose requests are all there at the start, from step `warm_up` until nobody waits any more."""
    key = (*overrides, str(warm_up))
    if key not in lab.kept:
        planned, kept = simulate.plan(config := lab.compose([*SIMULATED, *overrides])), Thinned(EVERY_ROW, merged)
        engine = simulate.make_engine(config, planned, Outcomes(Nobody(), 0), kept)
        while engine.step() and engine.scheduler.queued:
            pass
        engine.recorder.series.flush()
        lab.kept[key] = Steps(kept.rows(len(Step._fields))[warm_up:], planned.strategy.memory.bytes)
    steps: Steps = lab.kept[key]
    return steps


def whole(lab: Lab, overrides: list[str]) -> Steps:
    """A whole run; steps in which somebody ran."""
    planned, kept = simulate.plan(config := lab.compose([*SIMULATED, *overrides])), Thinned(EVERY_ROW, merged)
    simulate.make_engine(config, planned, Outcomes(Nobody(), 0), kept).run()
    steps = Steps(kept.rows(len(Step._fields)), planned.strategy.memory.bytes)
    return Steps(steps.rows[steps.column("running") > 0], steps.pool_bytes)


def to_the_last_arrival(lab: Lab, overrides: list[str]) -> Steps:
    """A run at a rate, without what comes behind its last arrival."""
    planned, kept = simulate.plan(config := lab.compose([*SIMULATED, *overrides])), Thinned(EVERY_ROW, merged)
    engine = simulate.make_engine(config, planned, Outcomes(Nobody(), 0), kept)
    while engine.step() and engine.pending:
        pass
    engine.recorder.series.flush()
    steps = Steps(kept.rows(len(Step._fields)), planned.strategy.memory.bytes)
    return Steps(steps.rows[steps.column("running") > 0], steps.pool_bytes)


def metrics(lab: Lab, overrides: list[str]) -> dict[str, Any]:
    """The result of a whole run. RuntimeError: it could not be carried out."""
    with tempfile.TemporaryDirectory() as directory:
        return _result(lab, overrides, Path(directory))


def requests(lab: Lab, overrides: list[str]) -> list[dict[str, str]]:
    """Rows of requests.csv of a whole run, in order of arrival."""
    with tempfile.TemporaryDirectory() as directory:
        _result(lab, overrides, Path(directory))
        with (Path(directory) / "requests.csv").open() as file:
            return sorted(csv.DictReader(file), key=lambda row: int(row["id"]))


@contextmanager
def trace(pairs: list[tuple[int, int]]) -> Iterator[list[str]]:
    """Overrides for requests of these (prompt, output) tokens."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lengths.csv"
        path.write_text("prompt_len,output_len\n" + "".join(f"{prompt},{output}\n" for prompt, output in pairs))
        yield ["workload=fixed", f"workload.path={path}", "workload.num_requests=null"]


def _result(lab: Lab, overrides: list[str], directory: Path) -> dict[str, Any]:
    result = simulate.execute(lab.compose([*SIMULATED, *overrides]), directory, lambda _: None, None)
    if result["status"] != "ok":
        raise RuntimeError(f"{' '.join(overrides)}: {result['reason']}")
    return result
