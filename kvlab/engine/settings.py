"""What the node `engine` says of scheduling."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

LONGEST_PREFIX = "longest_prefix"  # engine.queue: whoever finds the most of its tokens in the cache goes first


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the node `engine`."""

    token_budget: int | None = None  # tokens of one launch, over all sequences; None: without bound
    max_preemptions: int = 20  # of one sequence; then its request fails
    wait_for_prefix: bool = True  # an arrival waits while somebody is computing more of its prefix than it would find
    queue: str = "arrival"  # whose turn it is among those of one priority; or LONGEST_PREFIX
    fork: bool = True  # samples of one request, and beams, share what they have in common
    length_penalty: float = 1.0  # of beam search

    @staticmethod
    def of(engine: dict[str, Any]) -> Settings:
        """Of the node `engine`, which has checked values."""
        names = [field.name for field in fields(Settings)]
        return Settings(**{name: engine[name] for name in names if name in engine})
