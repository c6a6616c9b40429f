"""Few-shot prompts: each of a few tasks has its examples, and every request puts a question of its own behind them."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from kvlab.errors import UsageError
from kvlab.request import Request
from kvlab.workload.make import Workload
from kvlab.workload.prompts import draw_prompt


def make(
    config: Mapping[str, Any], *, seed: int, max_len: int, vocab: int | None, temperature: float = 0.0
) -> Workload:
    """Requests of the resolved node few_shot.yaml. All of them arrive at once and declare the longest answer."""
    examples, question, answer = config["examples_len"], config["question_len"], config["answer_len"]
    prompt_len, limit = examples + question, examples + question + answer
    if limit > max_len:
        raise UsageError(f"workload few_shot: prompt and answer have {limit} tokens; allowed is max_len={max_len}")
    rng, requests = Random(f"{seed} few_shot"), []
    for id in range(config["num_requests"]):
        task, output_len = rng.randrange(config["tasks"]), rng.randint(1, answer)
        own_seed, own = draw_prompt(seed, id, question, vocab)
        _, shared = draw_prompt(seed, 10**9 + task, examples, vocab)
        prompt = None if own is None or shared is None else np.concatenate([shared, own])
        requests.append(Request(id, prompt_len, output_len, limit, 0.0, prompt, temperature, own_seed))
    return Workload(requests, [], {"source": f"{config['tasks']} tasks with {examples} tokens of examples each"})
