"""Random runs of random models: whatever the lengths, limits and sizes, every strategy makes the same tokens."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvlab.harness.compose import Composer
from kvlab.run import execute

pytestmark = pytest.mark.usefixtures("one_thread")

PAGES = (4096, 4096, 12288)


def shape(rng: Random) -> tuple[list[str], int, int]:
    """A model, its bytes a token, and its layers."""
    layers, kv_heads, head_dim = rng.choice((1, 2, 3)), rng.choice((2, 4)), rng.choice((6, 16, 18))
    sizes = [f"model.layers={layers}", f"model.kv_heads={kv_heads}", f"model.head_dim={head_dim}"]
    return [*sizes, f"model.seed={rng.randrange(9)}"], 2 * layers * kv_heads * head_dim * 8, layers


def work(rng: Random, max_len: int) -> list[str]:
    prompt = rng.randrange(1, max(2, max_len // rng.choice((1, 4, 4))))
    longest = rng.choice(
        (1, max_len - prompt, max_len - prompt, max_len - prompt + 1)
    )  # the last is refused where the prompt is longest
    lengths = [f"workload.prompt_len={{min: 1, max: {prompt}}}", f"workload.output_len={{min: 1, max: {longest}}}"]
    other = [
        f"seed={rng.randrange(1000)}",
        f"workload.num_requests={rng.choice((9, 20))}",
        f"workload.max_tokens={rng.choice(('null', 'null', rng.randint(1, max_len)))}",
        f"workload.rate={rng.choice(('null', 'null', 0.1))}",
        f"engine.chunk={rng.choice(('null', 1, 3, 1000))}",
        f"engine.temperature={rng.choice((0, 0, 1))}",
    ]
    return ["workload=uniform", *lengths, *other]


def case(seed: int) -> tuple[list[str], dict[str, list[str]]]:
    """What all runs share, with a pool that is tight or holds a few requests; and what differs."""
    rng = Random(seed)
    max_len, page, max_seqs = rng.choice((2, 17, 64, 64)), rng.choice(PAGES), rng.choice((3, 8, 256))
    model, token_bytes, layers = shape(rng)
    group = page * 2 * layers
    least = max((max_len + 20) * token_bytes, -(-max_len * token_bytes // group) * group)
    pool = least + rng.randrange(rng.choice((1, 2 * max_len)) * token_bytes)
    shared = ["model=tiny", "dtype=float64", "engine.clock=steps", f"max_len={max_len}", f"pool_bytes={pool}"]
    at_once = f"engine.max_seqs={max_seqs}"
    variants = {
        "alone": ["strategy=paged", "block_size=1", "engine.max_seqs=1"],
        "contiguous": ["strategy=contiguous", at_once],
        "paged": ["strategy=paged", f"block_size={rng.choice((1, 3, 7, 16))}", at_once],
        "vattention": ["strategy=vattention", f"page_group_bytes={page}", at_once],
    }
    return [*shared, *model, *work(rng, max_len)], variants


@pytest.mark.parametrize("seed", [0, 2, 3, 5, 8, 9, 13, 15])  # 2 refuses, 5, 8, 13 and 15 preempt
def test_random_runs_make_the_same_tokens(composer: Composer, tmp_path: Path, seed: int) -> None:
    shared, variants = case(seed)
    outcomes: dict[str, Any] = {}
    for name, own in variants.items():
        result = execute(
            composer.compose([*shared, *own]).config, tmp_path
        )  # the engine checks that nothing stays held
        if result["status"] == "ok":
            assert result["num_failed"] == 0
            assert result["num_finished"] + result["num_refused"] == result["num_requests"]
        outcomes[name] = [result["status"], result["num_refused"], result.get("output_digest")]
    assert all(outcome == outcomes["alone"] for outcome in outcomes.values()), outcomes
