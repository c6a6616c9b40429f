"""Which requests were served well: within slo.ttft_s to their first token and slo.tpot_s for each later one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, NamedTuple

import numpy as np

from kvlab.engine.sequence import Sequence


class Slo(NamedTuple):
    """Limits in seconds, of the run's own clock; infinite where there is none."""

    ttft_s: float = inf
    tpot_s: float = inf  # on average over a sequence

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Slo:
        given = {name: float(value) for name, value in (config.get("slo") or {}).items() if value is not None}
        return cls(**given)

    def kept(self, arrival_s: Any, first_token_s: Any, finish_s: Any, output: Any) -> Any:
        """Whether sequences that finished kept within both: numbers, or arrays [N]. One token alone is never late."""
        tpot_s = (finish_s - first_token_s) / np.maximum(output - 1, 1)
        return (first_token_s - arrival_s <= self.ttft_s) & (tpot_s <= self.tpot_s)

    def kept_by(self, sequence: Sequence) -> bool:
        """Whether it finished, and kept within both."""
        request, first_s, finish_s = sequence.request, sequence.first_token_s, sequence.finish_s
        if sequence.outcome != "finished" or first_s is None or finish_s is None:
            return False
        return bool(self.kept(request.arrival_s, first_s, finish_s, sequence.known - request.prompt_len))


def served_well(ended: Iterable[Sequence], slo: Slo) -> int:
    """Requests of which every sequence kept within the limits."""
    well: dict[int, bool] = {}
    for sequence in ended:
        well[sequence.request.id] = slo.kept_by(sequence) and well.get(sequence.request.id, True)
    return sum(well.values())


def share(count: int, num_requests: int) -> float | None:
    """Of all requests, refused and failed ones as well; None where none came."""
    return count / num_requests if num_requests else None
