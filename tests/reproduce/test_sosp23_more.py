"""The PagedAttention paper's other figures: what is run, and that ratios and prices are what they say."""

from __future__ import annotations

import itertools

import pytest

from kvlab import simulate
from kvlab.harness.compose import Composer
from kvlab.reproduce import sosp23_kernels, sosp23_more
from kvlab.reproduce.frame import Lab
from kvlab.reproduce.serving import SIMULATED


@pytest.fixture(scope="module")
def lab():
    with Composer() as composer:
        yield Lab(lambda overrides: composer.compose(overrides).config, seeds=(0,))


def test_ratios_are_taken_seed_by_seed():
    found = sosp23_more._over({"vLLM": [6.0, 8.0], "Orca (Max)": [2.0, 4.0]}, "b", "how")
    assert found["b: over Orca (Max)"].values == [3.0, 2.0]
    assert found["b: over Orca (Max)"].how == "how: vLLM 7.00/s, Orca (Max) 3.00/s"


def test_prompts_of_chats_are_their_last_1024_tokens(lab):
    pairs = sosp23_more.chats(lab, 0)
    prompts, outputs = zip(*pairs, strict=True)
    assert len(pairs) == sosp23_more.CHATS
    assert max(prompts) == 1024 >= max(outputs)
    assert sum(prompt == 1024 for prompt in prompts) > len(pairs) / 3  # a history soon has as many
    assert min(prompts) < 200


@pytest.mark.parametrize(("model", "tokens"), [("66B", 9_700), ("175B", 60_100)])
def test_pools_of_larger_models_are_those_of_table_1(lab, model, tokens):
    overrides = sosp23_more._large(sosp23_more.LARGE[model], "vllm_v0", "Alpaca")
    planned = simulate.plan(lab.compose([*SIMULATED, *overrides]))
    memory = planned.strategy.memory
    assert memory.bytes // memory.token_bytes == pytest.approx(tokens, abs=16)


def test_the_paged_kernel_takes_its_factor_longer_at_any_length_and_batch(lab):
    assert {round(found.values[0], 6) for found in sosp23_kernels.fig18a(lab).values()} == {1.22}


def test_small_blocks_pay_for_calls_and_large_ones_for_bytes(lab):
    """Half the calls save half of what calls take; what is left is the bytes over the link."""
    found = {name: one.values[0] for name, one in sosp23_kernels.fig19a(lab).items()}
    times = [found[f"swap out and in, blocks of {size}"] for size in sosp23_kernels.SIZES]
    saved = [more - fewer for more, fewer in itertools.pairwise(times)]
    assert [first / second for first, second in itertools.pairwise(saved)] == pytest.approx([2.0] * 7)
    size = 2 * sosp23_kernels.SWAPPED * 800 * 1024  # there and back
    assert times[-1] - saved[-1] == pytest.approx(1e3 * size / 25.6e9, rel=0.01)
