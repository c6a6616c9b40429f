"""What is recorded of a step."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """One step, seen when its launch is over and before anybody leaves. Bytes, seconds, counts."""

    time_s: float  # end of the step, from the start of the run
    dt_s: float
    running: int
    waiting: int
    prefill_tokens: int  # computed by sequences that have known tokens left or had: prompts, and recomputation
    decode_seqs: int  # sequences that computed their newest token
    token_state: int
    reservation: int
    internal: int
    cached: int
    external: int
    held: int
    backed: int
    os_committed: int
    preemptions: int  # so far
    admissions: int  # so far
