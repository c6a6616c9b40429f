"""What the scheduler did, for the record."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvlab.engine.sequence import Sequence


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
    num_ended: int = 0  # requests
    ended: list[Sequence] = field(default_factory=list)  # finished, refused, failed; empty where they go elsewhere
