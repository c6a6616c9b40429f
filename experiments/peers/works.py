"""The work that every peer is given, and what is measured of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from kvlab.harness.compose import Composer
from kvlab.workload.make import make

PROMPT = OUTPUT = 128  # tokens of each sequence of a batch
VOCAB = 49_152
MAX_LEN = 1_024
FIRST = 42  # tokens of the prompt behind which the first token is waited for


@dataclass(frozen=True)
class Work:
    """Requests that are all there at once."""

    name: str
    prompts: list[list[int]]
    outputs: list[int]

    @property
    def message(self) -> dict[str, Any]:
        return {"prompts": self.prompts, "outputs": self.outputs}


def workload(requests: int | None = None) -> Work:
    """workload=listed, with kvlab's token ids; the first so many of it, None: all."""
    with Composer() as composer:
        config = composer.compose(["workload=listed", f"max_len={MAX_LEN}"]).config
    made = make(config["workload"], seed=0, max_len=MAX_LEN, vocab=VOCAB, temperature=0.0)
    prompts = [request.prompt.tolist() for request in made.requests if request.prompt is not None]
    outputs = [request.output_len or 0 for request in made.requests]
    return Work("workload", prompts[:requests], outputs[:requests])


def batch(size: int, output: int) -> Work:
    rng = random.Random(size)
    prompts = [rng.choices(range(3, VOCAB), k=PROMPT) for _ in range(size)]
    return Work(f"batch {size}, {output} of output", prompts, [output] * size)


def first() -> Work:
    return Work("first token", [random.Random(0).choices(range(3, VOCAB), k=FIRST)], [1])


def decode_rate(size: int, whole_s: float, prefill_s: float) -> float:
    """Tokens a second behind the first ones, which came with the prompts."""
    return size * (OUTPUT - 1) / (whole_s - prefill_s)


def prefill_rate(size: int, prefill_s: float) -> float:
    """Prompt tokens a second."""
    return size * PROMPT / prefill_s
