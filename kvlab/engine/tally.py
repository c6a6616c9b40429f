"""What the scheduler did, for the record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvlab.engine.sequence import Sequence
from kvlab.record.gaps import Gaps


@dataclass(slots=True)
class Tally:
    """Counts so far. Tokens, where nothing else is said."""

    preemptions: int = 0  # of sequences
    recomputed_tokens: int = 0
    swapped_out_tokens: int = 0
    swaps_refused: int = 0  # the host tier was full: recomputed instead
    hit_tokens: int = 0
    input_tokens: int = 0  # of first admissions
    admissions: int = 0
    forks: int = 0
    waits_for_prefix: int = 0  # times an arrival was left waiting for what somebody else was computing
    idle: int = 0  # times a sequence found no room and stood still for a step
    drafted_tokens: int = 0
    accepted_tokens: int = 0  # of them
    gaps: Gaps = field(default_factory=Gaps)  # between tokens
    num_ended: int = 0  # requests
    ended: list[Sequence] = field(default_factory=list)  # finished, refused, failed; empty where they go elsewhere

    def metrics(self) -> dict[str, Any]:
        """The part of a result that is counted here."""
        return {
            "num_preemptions": self.preemptions,
            "recomputed_tokens": self.recomputed_tokens,
            "swapped_out_tokens": self.swapped_out_tokens,
            "num_swaps_refused": self.swaps_refused,
            "num_forks": self.forks,
            "num_waits_for_prefix": self.waits_for_prefix,
            "num_idle": self.idle,
            "itl_s": self.gaps.spread(),
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "prefix_hit_rate": self.hit_tokens / self.input_tokens if self.input_tokens else 0.0,
        }
