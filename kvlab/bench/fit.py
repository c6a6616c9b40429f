"""What a launch of the real engine takes beyond its parts: so much for each launch, sequence and token.

Fitted to batches of equal prompts: a workload of its own, so that any other is a fair comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.bench import machine
from kvlab.build import build_strategy
from kvlab.cost.model import build_cost
from kvlab.engine.real import real_engine
from kvlab.model.llama import Llama
from kvlab.request import Request

BATCHES = ((1, 48), (1, 384), (3, 160), (8, 64), (8, 320), (20, 24), (24, 96))  # prompts, tokens of each
DECODES = 10  # launches that only decode, of each batch
TERMS = ("launch", "decode_sequence", "prefill_sequence", "token")


class Launched(NamedTuple):
    """One launch of the real engine, and its seconds, planning and recording included."""

    new_B: NDArray[np.int64]
    stop_B: NDArray[np.int64]
    samples: int
    seconds: float


def observe(
    config: dict[str, Any], model: Llama, batches: Sequence[tuple[int, int]] = BATCHES, decodes: int = DECODES
) -> list[Launched]:
    """Launches of the real engine: every batch's prompts at once, then its decodes together."""
    return [launch for batch, length in batches for launch in _batch(config, model, batch, length, decodes)]


def _batch(config: dict[str, Any], model: Llama, batch: int, length: int, decodes: int) -> list[Launched]:
    token_bytes, final = model.shape.token_bytes(config["dtype"]), length + decodes + 1
    pool = 2 * (batch + 1) * max(final, int(config["max_len"]) // 8) * token_bytes
    strategy = build_strategy(config, token_bytes, model.shape.layers, pool)
    random, seen = np.random.default_rng(length), list[Launched]()
    requests = [
        Request(index, length, decodes + 1, final, 0.0, random.integers(0, model.shape.vocab, length, np.int32))
        for index in range(batch)
    ]
    with real_engine(config, model, strategy, requests) as engine:
        inner = engine.executor.run

        def run(moves: Any, launch: Any) -> Any:
            seen.append(Launched(launch.stop_B - launch.start_B, launch.stop_B, int(launch.samples_B.sum()), 0.0))
            return inner(moves, launch)

        engine.executor.run = run  # type: ignore[method-assign]
        busy = True
        while busy:
            begin, launches = machine.clock(), len(seen)
            busy = engine.step()
            if len(seen) > launches:
                seen[-1] = seen[-1]._replace(seconds=machine.clock() - begin)
    return seen


def fit(
    config: dict[str, Any], model: Llama, launches: Sequence[Launched]
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of each of TERMS, none below 0, that make up best for what the parts leave, by shares of a launch.

    config's own overhead is 0. Errors: of decoding and of prompts, median, and all together.
    """
    token_bytes = model.shape.token_bytes(config["dtype"])
    strategy = build_strategy(config, token_bytes, model.shape.layers, 64 * int(config["max_len"]) * token_bytes)
    cost = build_cost(config, model.shape, strategy)
    parts_N = np.array([cost.launch(launch.new_B, launch.stop_B, launch.samples) for launch in launches])
    seconds_N = np.array([launch.seconds for launch in launches])
    terms_NK = np.array([_terms(launch) for launch in launches], float)
    found_K = _not_negative(terms_NK / seconds_N[:, None], (seconds_N - parts_N) / seconds_N)
    error_N = (parts_N + terms_NK @ found_K) / seconds_N - 1
    prompt_N = terms_NK[:, 2] > 0
    errors = {
        "decode_median": float(median(np.abs(error_N[~prompt_N]))),
        "prefill_median": float(median(np.abs(error_N[prompt_N]))),
        "total": float((parts_N + terms_NK @ found_K).sum() / seconds_N.sum() - 1),
    }
    return dict(zip(TERMS, found_K.tolist(), strict=True)), errors


def _terms(launch: Launched) -> tuple[int, int, int, int]:
    prompts = int((launch.new_B > 1).sum())
    return 1, len(launch.new_B) - prompts, prompts, int(launch.new_B.sum())


def _not_negative(matrix_NK: NDArray[np.float64], wanted_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares; a term that would be negative is left out, the lowest first."""
    found_K, kept = np.zeros(matrix_NK.shape[1]), list(range(matrix_NK.shape[1]))
    while kept:
        values = np.linalg.lstsq(matrix_NK[:, kept], wanted_N, rcond=None)[0]
        if (values >= 0).all():
            found_K[kept] = values
            break
        kept.pop(int(values.argmin()))
    return found_K
