"""From a row to a request: what all requests begin with, how many answers they want, how urgent they are."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlab.errors import UsageError
from kvlab.request import Request
from kvlab.workload.content import Content, Words
from kvlab.workload.knobs import Config, number, optional_whole, whole
from kvlab.workload.prompts import SYSTEM, draw_prompt

MOST = {"n": 1024, "beams": 1024, "priorities": 1024, "system_prompt": 10**9}


@dataclass(frozen=True, slots=True)
class Maker:
    """What a run's requests have in common."""

    seed: int
    max_len: int
    vocab: int | None  # None: lengths only
    temperature: float
    max_tokens: int | None
    share: float  # of each drawn prompt, from its beginning, that all have in common
    system_prompt: int  # tokens before each prompt
    n: int
    beams: int
    priorities: int  # classes; a request has one of 0 .. priorities - 1
    words: Words | None  # of prompts that a file decides

    def request(self, id: int, prompt_len: int, output_len: int, arrival_s: float, content: Content | None) -> Request:
        """prompt_len: the system prompt included."""
        own_seed, ids = draw_prompt(self.seed, id, prompt_len - self.system_prompt, self._drawn(content), self.share)
        if content is not None and self.words is not None:
            ids = content.ids(self.words)
        return Request(
            id, prompt_len, output_len, self.limit(prompt_len), arrival_s, self._whole(ids), self.temperature, own_seed,
            n=self.n, beams=self.beams, priority=self.priority(id),
        )  # fmt: skip

    def limit(self, prompt_len: int) -> int:
        """What a client declares; it does not know how long the answer will be."""
        return self.max_len if self.max_tokens is None else min(self.max_len, prompt_len + self.max_tokens)

    def priority(self, id: int) -> int:
        return int(Random(f"{self.seed} priority {id}").random() * self.priorities) if self.priorities > 1 else 0

    @property
    def plain(self) -> bool:
        """Whether a request is its lengths, its limit and its arrival, and nothing else."""
        return (self.system_prompt, self.n, self.beams, self.priorities) == (0, 1, 0, 1)

    @property
    def about(self) -> dict[str, Any]:
        """For the result file."""
        return {
            "max_tokens": self.max_tokens,
            "shared_prefix": self.share,
            "system_prompt": self.system_prompt,
            "n": self.n,
            "beams": self.beams,
            "priorities": self.priorities,
        }

    def _drawn(self, content: Content | None) -> int | None:
        return self.vocab if content is None else None

    def _whole(self, ids: NDArray[np.int32] | None) -> NDArray[np.int32] | None:
        """With the system prompt before it."""
        if ids is None or not self.system_prompt:
            return ids
        _, common = draw_prompt(self.seed, SYSTEM, self.system_prompt, self.vocab)
        assert common is not None  # there is a vocabulary: ids were drawn from it
        both = np.concatenate((common, ids))
        both.flags.writeable = False
        return both


def maker(config: Config, *, seed: int, max_len: int, vocab: int | None, temperature: float = 0.0) -> Maker:
    """From the resolved `workload` node; each knob is as if null where absent. UsageError: a wrong value."""
    share = 0.0 if config.get("shared_prefix") is None else number(config, "shared_prefix", 0, 1)
    n, beams, priorities, system_prompt = (
        least if config.get(knob) is None else whole(config, knob, least, MOST[knob])
        for knob, least in (("n", 1), ("beams", 0), ("priorities", 1), ("system_prompt", 0))
    )
    if n > 1 and beams:
        raise UsageError(f"workload.n={n}: allowed is 1 with workload.beams={beams}; a request samples or searches")
    words = None if vocab is None else Words(seed, vocab)
    return Maker(
        seed, max_len, vocab, temperature, optional_whole(config, "max_tokens"), share, system_prompt, n, beams,
        priorities, words,
    )  # fmt: skip
