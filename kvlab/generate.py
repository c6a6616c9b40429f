"""Real text from the real model under a strategy, as it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvlab.build import build_strategy
from kvlab.engine.capacity import describe, pool_bytes
from kvlab.engine.engine import Engine
from kvlab.errors import UsageError
from kvlab.model.load import usable_source
from kvlab.model.tokenizer import Tokenizer
from kvlab.request import Request
from kvlab.start import load_library, opened_engine

if TYPE_CHECKING:
    from kvlab.engine.executor import RealExecutor


def generate(
    config: dict[str, Any], prompt: str, max_tokens: int, temperature: float, emit: Callable[[str], None]
) -> dict[str, Any]:
    """Answer `prompt` until the model ends its turn or `max_tokens` are out; `emit` gets the text in pieces.

    Returns the counts of what was done. UsageError: no tokenizer, no room, wrong values.
    """
    source = usable_source(config["model"], config["dtype"])
    if config["device"] == "cpu":
        load_library()
    shape, tokenizer = source.shape, source.tokenizer
    if tokenizer is None:
        raise UsageError(f"model={source.name} has no tokenizer; text needs model=smollm2 or model.path=DIR with one")
    shape.check_max_len(int(config["max_len"]))
    request = _request(config, tokenizer.chat(prompt), max_tokens, temperature)
    token_bytes = shape.token_bytes(config["dtype"])
    strategy = build_strategy(config, token_bytes, shape.layers, pool_bytes(config, shape))
    if request.limit > strategy.longest:
        raise UsageError(
            f"{request.limit:,} tokens do not fit: the longest here is {strategy.longest:,}; raise pool_bytes"
        )
    with opened_engine(config, strategy, [request], eos=tuple(sorted(tokenizer.eos_ids))) as engine:
        _stream(engine, tokenizer, emit)
    capacity = describe(strategy, int(config.get("page_group_bytes") or 0))["line"]
    return {"strategy": config["strategy"]["name"], "capacity": capacity, **_counts(engine)}


def _counts(engine: Engine[RealExecutor]) -> dict[str, Any]:
    (sequence,) = engine.scheduler.tally.ended
    finish_s = sequence.finish_s or 0.0
    return {
        "prompt_tokens": sequence.request.prompt_len,
        "output_tokens": len(sequence.output),
        "tokens_per_s": len(sequence.output) / finish_s if finish_s else 0.0,
        "ttft_s": sequence.first_token_s,
        "peak_held_bytes": max(row.held for row in engine.recorder.rows),
        "os_committed_bytes": max(row.os_committed for row in engine.recorder.rows),
    }


def _request(config: dict[str, Any], ids: list[int], max_tokens: int, temperature: float) -> Request:
    max_len = int(config["max_len"])
    if max_tokens < 1 or temperature < 0:
        raise UsageError(f"max tokens {max_tokens}, temperature {temperature}: allowed are 1 or more and 0 or more")
    if len(ids) >= max_len:
        raise UsageError(f"the prompt has {len(ids):,} tokens, max_len={max_len:,} leaves no room for an answer")
    prompt, limit = np.array(ids, np.int32), min(max_len, len(ids) + max_tokens)
    return Request(0, len(ids), None, limit, 0.0, prompt, temperature, int(config["seed"]))


def _stream(engine: Engine[RealExecutor], tokenizer: Tokenizer, emit: Callable[[str], None]) -> None:
    """Run the engine and emit what each step adds to the text; half a character waits for its rest."""
    shown, lanes = "", engine.scheduler.lanes
    while engine.step():
        if not len(lanes):
            continue
        lane = int(lanes.order[0])
        assert lanes.ids is not None
        text = tokenizer.decode(lanes.ids[lane, lanes.prompt[lane] : lanes.known[lane]].tolist())
        if not text.endswith("�") and text.startswith(shown):
            emit(text[len(shown) :])
            shown = text
    final = tokenizer.decode(engine.scheduler.tally.ended[0].output.tolist())
    emit(final[len(shown) :])
