"""The axes in the scheduler, over memory that remembers: who reserves never preempts, who does not still ends."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.engine import axes
from kvlab.request import Request
from kvlab.strategies.paged import Paged
from kvlab.strategies.prefix import Prefix
from kvlab.strategies.vattention import VAttention

STRATEGIES = {
    "paged": lambda memory: Paged(memory, 4),
    "tokens": lambda memory: Paged(memory, 1),
    "prefix": lambda memory: Prefix(memory, 4),
    "vattention": lambda memory: VAttention(memory),
}
RESERVING = {
    "reserve_max_tokens": lambda: {"admission": axes.ReserveMaxTokens(), "preemption": axes.Never()},
    "oracle": lambda: {"admission": axes.TruePeak(), "forecast": axes.Oracle(), "preemption": axes.Never()},
}
OTHERS = {
    "first_chunk": lambda: axes.FirstChunk(8),
    "full_prompt": lambda: axes.FullPrompt(8),
    "watermark": lambda: axes.Watermark(0.1),
    "new_token_ratio": lambda: axes.NewTokenRatio(steps=20),
    "past_future": lambda: axes.PastFuture(least=3),
}
VICTIMS = {
    "newest": axes.Newest, "least_output": axes.LeastOutput, "priority": axes.Priority,
    "most_blocks": axes.MostBlocks,
}  # fmt: skip


def requests(seed: int, count: int = 24) -> list[Request]:
    draw = np.random.default_rng(seed)
    prompts, outputs = draw.integers(1, 30, count).tolist(), draw.integers(1, 30, count).tolist()
    ids = [draw.integers(0, 50, prompt).astype(np.int32) for prompt in prompts]
    spare = draw.integers(0, 5, count).tolist()
    return [
        Request(i, prompts[i], outputs[i], prompts[i] + outputs[i] + spare[i], float(i // 2), ids[i], priority=i % 3)
        for i in range(count)
    ]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", RESERVING)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_who_reserves_never_preempts(strategy, name, seed, memory, serve):
    """With nobody to give way: a promise broken is a request that fails."""
    engine = serve(STRATEGIES[strategy](memory(128)), requests(seed), **RESERVING[name]())
    ended = engine.scheduler.tally.ended
    assert {sequence.outcome for sequence in ended} == {"finished"}
    assert engine.scheduler.tally.preemptions == 0
    assert engine.recorder.totals.launches < sum(s.request.output_len for s in ended) / 2  # not one at a time


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("name", OTHERS)
def test_who_does_not_reserve_still_serves_everybody(name, victim, memory, serve):
    engine = serve(
        Paged(memory(96, chunk=8), 4), requests(3), admission=OTHERS[name](), victim=VICTIMS[victim](),
        max_preemptions=1000,
    )  # fmt: skip
    assert {sequence.outcome for sequence in engine.scheduler.tally.ended} == {"finished"}


def test_first_chunks_preempt_where_full_prompts_wait(memory, serve):
    """vllm #25538: what is admitted by its first chunk is thrown out by the next ones."""

    def preemptions(admission) -> int:
        strategy = Paged(memory(128, chunk=4), 4)
        long = [Request(i, 48, 4, 52, 0.0, np.full(48, i, np.int32)) for i in range(8)]
        return serve(strategy, long, admission=admission, max_preemptions=1000).scheduler.tally.preemptions

    assert preemptions(axes.FirstChunk(4)) > 10
    assert preemptions(axes.FullPrompt(4)) == 0
