"""The same over a real model, tiny and in float64: whatever the preset and the axes, the tokens of an unbatched run.

What each request makes alone is told by a run that batches nothing: one request at a time, nothing shared.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvlab.harness.compose import Composer
from kvlab.run import execute

pytestmark = pytest.mark.usefixtures("one_thread")

NEEDS = {"admission=oracle": "oracle"}  # the forecast
SMALLER = {"growing_step": ["strategy.step=8"]}
NOBODY_GIVES_WAY = ("hf_dynamic", "orca_max", "orca_pow2", "orca_oracle")
TOKEN_BYTES = 2 * 2 * 2 * 16 * 8  # keys and values, layers, heads, numbers of a head, bytes of one


def work(rng: Random, max_len: int) -> list[str]:
    """What the runs of one case have in common."""
    prompt = rng.randint(1, max_len // 2)
    several = rng.choice(("n=1", "n=1", "n=3", "beams=2"))
    return [
        "model=tiny", "dtype=float64", "engine.clock=steps", f"max_len={max_len}", "workload=uniform",
        f"workload.prompt_len={{min: 1, max: {prompt}}}", f"workload.output_len={{min: 1, max: {max_len - prompt}}}",
        f"workload.num_requests={rng.choice((6, 10))}", f"workload.rate={rng.choice(('null', 'null', 0.2))}",
        f"workload.shared_prefix={rng.choice((0, 0.5))}", f"workload.priorities={rng.choice((1, 3))}",
        f"workload.{several}", f"engine.temperature={0 if several == 'beams=2' else rng.choice((0, 1))}",
        f"seed={rng.randrange(1000)}",
    ]  # fmt: skip


def axes(rng: Random, choices) -> list[str]:
    """One of each axis, and a strategy."""
    chosen = {axis: rng.choice(choices(axis)) for axis in ("admission", "victim", "preemption", "eviction", "strategy")}
    chosen["forecast"] = NEEDS.get(f"admission={chosen['admission']}", rng.choice(choices("forecast")))
    return [*(f"{axis}={name}" for axis, name in chosen.items()), *SMALLER.get(chosen["strategy"], [])]


def sizes(rng: Random, max_len: int, several: int) -> list[str]:
    """A pool for all the sequences of one request, each as long as it may become, and somewhat more."""
    pool = several * 3 * max_len + 16 + rng.choice((0, 5, max_len, 4 * max_len))
    return [
        f"pool_bytes={pool * TOKEN_BYTES}", f"host_bytes={rng.choice((0, 20, 1000)) * TOKEN_BYTES}",
        "page_group_bytes=4096", f"block_size={rng.choice((1, 3, 4, 8))}", f"engine.max_seqs={rng.choice((4, 8))}",
        "engine.max_preemptions=1000",
    ]  # fmt: skip


def settings(rng: Random) -> list[str]:
    """What a preset sets itself."""
    return [
        f"engine.chunk={rng.choice(('null', 1, 5))}", f"engine.token_budget={rng.choice(('null', 4, 12))}",
        f"engine.fork={rng.choice(('true', 'false'))}",
        f"engine.wait_for_prefix={rng.choice(('true', 'true', 'false'))}",
        f"engine.queue={rng.choice(('arrival', 'longest_prefix'))}",
    ]  # fmt: skip


def drafts(rng: Random) -> list[str]:
    """Of speculative decoding; those that are right are read from the unbatched run."""
    count = rng.choice((0, 0, 1, 4))
    return [f"engine.draft_tokens={count}", f"engine.draft_accept={rng.choice((0.0, 0.6, 1.0))}"] if count else []


def case(seed: int, choices, preset: str | None = None) -> tuple[list[str], list[str]]:
    """(overrides of the unbatched run, of the other)."""
    rng = Random(seed)
    max_len = rng.choice((12, 24, 40))
    shared = work(rng, max_len)
    several = 3 if "workload.n=3" in shared else 2 if "workload.beams=2" in shared else 1
    alone = [f"engine.max_seqs={several}", "strategy=paged", "block_size=1", "engine.fork=false"]
    alone.append(f"pool_bytes={2 * several * max_len * TOKEN_BYTES}")
    given = sizes(rng, max_len, several) + (
        settings(rng) + axes(rng, choices) if preset is None else [f"preset={preset}"]
    )
    return [*shared, *alone], [*shared, *given, *drafts(rng)]


def outcome(composer: Composer, directory: Path, overrides: list[str]) -> dict[str, Any]:
    result = execute(composer.compose(overrides).config, directory)  # the engine checks that nothing stays held
    assert result["status"] == "ok", (result["reason"], overrides)
    assert result["num_finished"] + result["num_refused"] + result["num_failed"] == result["num_requests"]
    return result


def check(composer: Composer, directory: Path, alone: list[str], given: list[str]) -> None:
    (directory / "alone").mkdir(parents=True)
    expected = outcome(composer, directory / "alone", alone)
    if any(word.startswith("engine.draft_tokens") for word in given):
        given = [*given, f"engine.draft_tape={directory / 'alone'}"]
    result = outcome(composer, directory, given)
    assert not expected["num_failed"]
    if result["num_failed"]:
        reserve = [f"preset={name}" for name in NOBODY_GIVES_WAY]
        assert not {"preemption=none", "victim=most_blocks", *reserve}.isdisjoint(given), given
    else:
        assert result["output_digest"] == expected["output_digest"], given


@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_those_of_an_unbatched_run(composer, tmp_path, choices, seed: int) -> None:
    check(composer, tmp_path, *case(seed, choices))


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(1, 9))
def test_tokens_of_eighty_runs_are_those_of_unbatched_runs(composer, tmp_path, choices, tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        check(composer, tmp_path / str(seed), *case(seed, choices))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_presets_make_the_tokens_of_an_unbatched_run(composer, tmp_path, choices, seed: int) -> None:
    for preset in choices("preset"):
        check(composer, tmp_path / preset, *case(seed, choices, preset))
