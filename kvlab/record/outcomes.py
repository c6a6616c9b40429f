"""What became of the requests of a run too long to keep them: counts, exact means, sketched quantiles.

The keys are those of kvlab.record.summary.work_metrics. The first `kept` requests to end are also written down.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import numpy as np

from kvlab import sketch
from kvlab.engine.columns import Ended
from kvlab.engine.sequence import Family, Sequence
from kvlab.engine.tally import Tally
from kvlab.record.goodput import Slo, share
from kvlab.record.series import Block, Series
from kvlab.sketch import Sketch

COLUMNS = ("arrival_s", "first_token_s", "finish_s", "output", "branch")
ONLY = -1  # the branch of a request's only sequence


class Writes(Protocol):
    """Writes down requests that have ended."""

    def one(self, sequence: Sequence) -> None: ...

    def many(self, ended: Ended, most: int) -> None: ...


class Outcomes:
    """Takes sequences when they have ended and forgets them; the first `kept` of them are written down."""

    def __init__(self, write: Writes, kept: int, slo: Slo | None = None) -> None:
        self.count: Counter[str] = Counter()
        self.write, self.kept = write, kept
        self.finished = Series(len(COLUMNS), self._take)
        self.ttft, self.tpot, self.normalized = Sketch(), Sketch(), Sketch()
        self.output_tokens, self.last_s, self.first_s = 0, 0.0, 0.0
        self.preempted_most = 0
        self.slo, self.served_well = slo or Slo(), 0
        self.late: set[int] = set()  # requests of which one sequence was late or failed, and others have not ended

    def add(self, sequence: Sequence) -> None:
        if not self.count:
            self.first_s = sequence.request.arrival_s
        request = sequence.request
        family = sequence.family
        if family is None or not family.live:  # the last one of its request
            self.count[sequence.outcome if family is None else family.outcome] += 1
        self.first_s = min(self.first_s, request.arrival_s)
        self.preempted_most = max(self.preempted_most, sequence.preemptions)
        if self.kept:
            self.kept -= 1
            self.write.one(sequence)
        if sequence.outcome == "finished":
            output = sequence.known - request.prompt_len
            first_s, finish_s = sequence.first_token_s or 0.0, sequence.finish_s or 0.0
            self.finished.append(
                (request.arrival_s, first_s, finish_s, output, ONLY if family is None else sequence.branch)
            )
        if family is not None:
            self._one_of(family, sequence)

    def add_all(self, ended: Ended) -> None:
        """As `add` takes them one by one."""
        first_s = float(ended.arrival_s.min())
        self.first_s = min(self.first_s, first_s) if self.count else first_s
        self.count[ended.outcome] += len(ended)
        self.preempted_most = max(self.preempted_most, int(ended.preemptions.max()))
        if self.kept:
            self.write.many(ended, self.kept)
            self.kept = max(0, self.kept - len(ended))
        if ended.outcome == "finished":
            branch_N = np.full(len(ended), ONLY)
            columns = ended.arrival_s, ended.first_token_s, ended.finish_s, ended.output, branch_N
            self.finished.extend(np.stack(columns, axis=1))

    def metrics(self, tally: Tally, launches: int, num_requests: int) -> dict[str, Any]:
        self.finished.flush()
        duration = max(self.last_s - self.first_s, 0.0)
        return {
            "num_finished": self.count["finished"],
            "num_failed": self.count["failed"],
            "num_output_tokens": self.output_tokens,
            "duration_s": duration,
            "tokens_per_s": self.output_tokens / duration if duration else 0.0,
            "goodput": share(self.served_well, num_requests),
            "num_steps": launches,
            **tally.metrics(),
            "most_preemptions": self.preempted_most,
            "ttft_s": self.ttft.spread(),
            "tpot_s": self.tpot.spread(),
            "normalized_latency_s": self.normalized.spread(),
            "quantile_error": sketch.ERROR,
        }

    def _one_of(self, family: Family, sequence: Sequence) -> None:
        """A request of several sequences is served well if all of them are."""
        if not self.slo.kept_by(sequence):
            self.late.add(sequence.request.id)
        if not family.live:
            self.served_well += sequence.request.id not in self.late
            self.late.discard(sequence.request.id)

    def _take(self, block: Block) -> None:
        arrival, first, finish, output, branch = block.T
        self.output_tokens += int(output.sum())
        self.last_s = max(self.last_s, float(finish.max()))
        several = output > 1
        self.ttft.add((first - arrival)[branch <= 0])
        self.tpot.add((finish - first)[several] / (output[several] - 1))
        self.normalized.add((finish - arrival) / np.maximum(output, 1))
        self.served_well += int(self.slo.kept(*block[branch == ONLY, :4].T).sum())
