"""Beam search: which candidates go on, and when a search is over. Numbers only; who holds what memory is elsewhere.

R beams that live, C candidates of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlab.engine.sequence import Candidates, Family, Hypothesis, Sequence


@dataclass(frozen=True, slots=True)
class Survivor:
    """A beam one token further."""

    parent: Sequence
    token: int
    score: float


@dataclass(frozen=True, slots=True)
class Rules:
    """Of a search: hypotheses compare by score / length ** penalty."""

    length_penalty: float = 1.0
    eos: tuple[int, ...] = ()

    def value(self, score: float, length: int) -> float:
        return float(score / max(length, 1) ** self.length_penalty)


def survivors(beams: list[Sequence], found: list[Candidates], width: int, eos: tuple[int, ...]) -> tuple[
    list[Survivor], list[Survivor]
]:  # fmt: skip
    """(the `width` best that go on, those among the best 2 x width that end with end-of-text), the best first.

    Equal scores: the elder beam first, then the better candidate.
    """
    score_RC = np.array([beam.score for beam in beams])[:, None] + np.stack([one.logprob_C for one in found])
    token_RC = np.stack([one.token_C for one in found])
    order = np.argsort(-score_RC, axis=None, kind="stable")
    going, ended = list[Survivor](), list[Survivor]()
    for place, index in enumerate(order.tolist()):
        row, column = divmod(index, score_RC.shape[1])
        token = int(token_RC[row, column])
        one = Survivor(beams[row], token, float(score_RC[row, column]))
        if token not in eos:
            going.append(one)
        elif place < 2 * width:
            ended.append(one)
        if len(going) == width:
            break
    return going, ended


def keep_best(family: Family, more: list[Hypothesis], rules: Rules) -> None:
    """Of the hypotheses that have ended, as many as the search is wide."""
    family.done += more
    family.done.sort(key=lambda one: -rules.value(one.score, len(one.output)))
    del family.done[family.request.beams :]


def is_over(family: Family, going: list[Survivor], length: int, rules: Rules) -> bool:
    """Whether no living beam, as it stands, is better than the worst of as many that have ended as are wanted."""
    if len(family.done) < family.request.beams or not going:
        return not going
    worst = family.done[-1]
    return rules.value(going[0].score, length) <= rules.value(worst.score, len(worst.output))
