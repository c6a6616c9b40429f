"""A sequence is one growing list of tokens; a family is what the sequences of one request know of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvlab.request import Request

NOTHING = np.empty(0, np.int32)
BRANCH_BITS = 40  # a sequence's id is its request's, with the branch above these bits

# Token ids of sequences at positions: (sequences [N], positions [N]) to [N].
Tokens = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int32]]


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's life in the engine, or one of them where it has several. Times: seconds from the run's start."""

    request: Request
    known: int  # tokens: the prompt, and the output so far
    output: NDArray[np.int32] = field(default_factory=lambda: NOTHING)  # kept while it is not running
    lane: int = -1  # -1: not on the device
    found: int = 0  # tokens in place when it was admitted last
    reached: int = 0  # the most tokens that were ever stored of it when it left the device
    swapped: int = 0  # tokens that lie on the host while it waits
    preemptions: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    finish_s: float | None = None
    outcome: str = "waiting"  # finished, refused (could never fit) or failed
    reason: str = ""  # why it was refused or failed
    branch: int = 0
    score: float = 0.0  # of a beam: the sum of its tokens' log-probabilities
    family: Family | None = None  # of a request with several sequences

    @property
    def id(self) -> int:
        return self.request.id + (self.branch << BRANCH_BITS)

    def tokens(self) -> NDArray[np.int32]:
        """Prompt and output [known] of one that is not running; read-only."""
        assert self.request.prompt is not None
        ids = np.concatenate((self.request.prompt, self.output))
        ids.flags.writeable = False
        return ids


@dataclass(slots=True, eq=False)
class Family:
    """The sequences of one request: samples, or the beams of a search, which go on together."""

    request: Request
    live: dict[int, Sequence] = field(default_factory=dict)  # by id, those that wait or run
    branches: int = 0  # ever made
    outcome: str = "finished"  # or what became of the first of them that did not
    ready: dict[int, Candidates] = field(default_factory=dict)  # of beams whose newest token is computed
    done: list[Hypothesis] = field(default_factory=list)  # of a search: those that ended with end-of-text

    def make(self, known: int, output: NDArray[np.int32] = NOTHING) -> Sequence:
        """One more of them."""
        sequence = Sequence(self.request, known, output, branch=self.branches, family=self)
        self.branches += 1
        self.live[sequence.id] = sequence
        return sequence


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What may follow a beam: tokens [C], and their log-probabilities [C], the best first."""

    token_C: NDArray[np.int64]
    logprob_C: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """A beam that has ended."""

    output: NDArray[np.int32]
    score: float


def shared_tokens(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """Leading tokens that are the same."""
    least = min(len(a), len(b))
    differs = a[:least] != b[:least]
    return int(differs.argmax()) if differs.any() else least
