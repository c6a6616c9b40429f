"""What the engine reaches on this machine: batches of equal requests, a workload, and a process up to its first word.

Seconds are the wall's: what a user waits for.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter, perf_counter_ns
from typing import Any

from torch import Tensor

from kvlab.engine.engine import Engine
from kvlab.engine.executor import RealExecutor
from kvlab.engine.kernels import Kernels
from kvlab.engine.real import real_engine
from kvlab.engine.sequence import Sequence
from kvlab.errors import UsageError
from kvlab.model.llama import Llama
from kvlab.record.summary import output_digest
from kvlab.run import plan

PARTS = ("attention", "layers", "view", "sample", "moves", "rest")


class Watched:
    """Kernels, and the nanoseconds that their attention took."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels, self.ns = kernels, 0
        self.make_view, self.kernel_name = kernels.make_view, kernels.kernel_name

    def attend(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: Any, scale: float) -> Tensor:
        begin = perf_counter_ns()
        o_TQD = self.kernels.attend(q_TQD, k_SHD, v_SHD, view, scale)
        self.ns += perf_counter_ns() - begin
        return o_TQD


@dataclass(slots=True)
class Batch:
    """Equal requests served together: seconds of the step that computes their prompts, and of the later ones."""

    prefill_s: float
    decode_s: float
    steps: int  # that decode
    parts_us: dict[str, float] = field(default_factory=dict)  # of a step that decodes: PARTS


@dataclass(slots=True)
class Served:
    """A workload from its first request to its last token."""

    wall_s: float
    output_tokens: int
    mean_batch: float  # requests running, mean over steps
    pool_bytes: int  # of keys and values, backed at the end
    preemptions: int  # of requests, which compute again what they had
    digest: str  # of all output tokens
    digests: list[str]  # of each request's, in order


def batch(config: dict[str, Any], model: Llama) -> Batch:
    """Equal requests that all begin in the first step and end in the last. UsageError: these do not."""
    with _opened(config, model) as engine:
        watched = Watched(engine.executor.kernels)
        engine.executor.kernels = watched
        begin = perf_counter()
        engine.step()
        prefill_s, before = perf_counter() - begin, _parts_ns(engine, watched)
        begin, steps, more = perf_counter(), 0, True
        while more:
            more, steps = engine.step(), steps + 1
        decode_s = perf_counter() - begin
        _check_together(engine, steps)
        spent = {name: ns - before[name] for name, ns in _parts_ns(engine, watched).items()}
    spent["rest"] = int(decode_s * 1e9) - sum(spent.values())
    return Batch(prefill_s, decode_s, steps, {name: spent[name] / 1e3 / steps for name in PARTS})


def _check_together(engine: Engine[RealExecutor], steps: int) -> None:
    ended = _all_finished(engine)
    if any(len(sequence.output) != steps + 1 for sequence in ended):
        raise UsageError(
            f"a batch of {len(ended)}: not all ran together from the first step to the last, a token of each a step "
            f"({engine.scheduler.tally.preemptions} were preempted); raise pool_bytes, or ask for less at once"
        )


def _all_finished(engine: Engine[RealExecutor]) -> list[Sequence]:
    """UsageError: some were refused or failed. What takes no time would count as quick."""
    ended = engine.scheduler.tally.ended
    if wrong := [sequence for sequence in ended if sequence.outcome != "finished"]:
        first = wrong[0]
        raise UsageError(
            f"{len(wrong)} of {len(ended)} requests were not served, which is no work to measure: "
            f"request {first.request.id} was {first.outcome}, {first.reason}"
        )
    return ended


def _parts_ns(engine: Engine[RealExecutor], watched: Watched) -> dict[str, int]:
    ns = engine.executor.ns
    return {
        "attention": watched.ns,
        "layers": ns["model"] - watched.ns,
        "view": ns["view"],
        "sample": ns["sample"],
        "moves": ns["moves"] + ns["beside"],
    }


def serve(config: dict[str, Any], model: Llama) -> Served:
    """The configuration's workload. UsageError: some of its requests were not served."""
    with _opened(config, model) as engine:
        begin = perf_counter()
        engine.run()
        wall_s, pool_bytes = perf_counter() - begin, engine.executor.store.committed_bytes()
    ended, rows = _all_finished(engine), engine.recorder.rows
    tokens = sum(len(sequence.output) for sequence in ended)
    return Served(
        wall_s,
        tokens,
        mean_batch=sum(row.running for row in rows) / len(rows),
        pool_bytes=pool_bytes,
        preemptions=engine.scheduler.tally.preemptions,
        digest=output_digest(ended),
        digests=[output_digest([sequence]) for sequence in sorted(ended, key=lambda sequence: sequence.id)],
    )


def _opened(config: dict[str, Any], model: Llama) -> AbstractContextManager[Engine[RealExecutor]]:
    planned = plan(config)
    if refused := planned.workload.refused:
        raise UsageError(
            f"{len(refused)} of {len(refused) + len(planned.workload.requests)} requests are longer than "
            f"max_len={config['max_len']}, and would be left out; raise it, or ask for shorter ones"
        )
    return real_engine(config, model, planned.strategy, planned.workload.requests)


def first_output_s(words: list[str]) -> float:
    """Seconds from the start of `kvlab` with these words, in a process of its own, to its first byte of output."""
    begin = perf_counter()
    command = [sys.executable, "-P", "-m", "kvlab.harness.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = perf_counter() - begin
        _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"kvlab {' '.join(words)} ended with {process.returncode}: {errors.decode()[-2000:]}")
    return seconds
