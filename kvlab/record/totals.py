"""The memory metrics of a run from its rows, taken in as they come. Definitions: docs/metrics.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlab.record.series import Block
from kvlab.record.step import Step

WASTE = ("reservation", "internal", "external", "cached")
WEIGHTED = (*WASTE, "token_state", "held", "shared")
_AT = {name: index for index, name in enumerate(Step._fields)}


@dataclass(slots=True)
class Window:
    """Sums over some rows."""

    rows: int = 0
    seconds: float = 0.0
    weighted: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(WEIGHTED)))  # bytes x seconds
    decode_steps: int = 0
    decode_running: float = 0.0
    most_running: int = 0

    def add(self, block: Block) -> None:
        dt = block[:, _AT["dt_s"]]
        running, decodes = block[:, _AT["running"]], block[:, _AT["decode_seqs"]] > 0
        self.rows += len(block)
        self.seconds += float(dt.sum())
        self.weighted = self.weighted + dt @ block[:, [_AT[name] for name in WEIGHTED]]
        self.decode_steps += int(decodes.sum())
        self.decode_running += float(running[decodes].sum())
        self.most_running = max(self.most_running, int(running.max(initial=0)))

    def copy(self) -> Window:
        return Window(self.rows, self.seconds, self.weighted, self.decode_steps, self.decode_running, self.most_running)


class Totals:
    """`saturated`: until the waiting queue last emptied, the last row in which somebody waited and all before it."""

    def __init__(self) -> None:
        self.whole, self.saturated = Window(), Window()
        self.launches = self.prefill_only = 0
        self.peak_backed = self.peak_committed = 0

    def add(self, block: Block) -> None:
        waiting = np.flatnonzero(block[:, _AT["waiting"]] > 0)
        if len(waiting):
            self.saturated = self.whole.copy()
            self.saturated.add(block[: waiting[-1] + 1])
        self.whole.add(block)
        ran, decodes = block[:, _AT["running"]] > 0, block[:, _AT["decode_seqs"]] > 0
        self.launches += int(ran.sum())  # the other rows are waits for the next arrival
        self.prefill_only += int((ran & ~decodes).sum())
        self.peak_backed = max(self.peak_backed, int(block[:, _AT["backed"]].max(initial=0)))
        self.peak_committed = max(self.peak_committed, int(block[:, _AT["os_committed"]].max(initial=0)))

    def metrics(self, pool_bytes: int) -> dict[str, Any]:
        """Shares of the pool, time-weighted: over the saturated window and, as *.whole, over the run.

        Where nobody ever waited, the window is the whole run, and saturated_steps is 0.
        """
        metrics: dict[str, Any] = {"saturated_steps": self.saturated.rows, "saturated_s": self.saturated.seconds}
        for suffix, window in (("", self.saturated if self.saturated.rows else self.whole), (".whole", self.whole)):
            metrics |= {name + suffix: value for name, value in shares(window, pool_bytes).items()}
        metrics["prefill_only_steps"] = self.prefill_only
        metrics["peak_committed_bytes"] = self.peak_backed
        metrics["os_committed_bytes"] = self.peak_committed
        return metrics


def shares(window: Window, pool_bytes: int) -> dict[str, Any]:
    means = window.weighted / window.seconds if window.seconds else window.weighted * 0
    mean = dict(zip(WEIGHTED, means.tolist(), strict=True))
    return {
        "utilization": mean["token_state"] / pool_bytes,
        "allocated_utilization": mean["token_state"] / mean["held"] if mean["held"] else 0.0,
        "pool_usage": mean["held"] / pool_bytes,
        "sharing_saving": mean["shared"] / (mean["held"] + mean["shared"]) if mean["held"] else 0.0,
        "waste": {name: mean[name] / pool_bytes for name in WASTE},
        "mean_batch_size": window.decode_running / window.decode_steps if window.decode_steps else None,
        "max_batch_size": window.most_running,
    }
