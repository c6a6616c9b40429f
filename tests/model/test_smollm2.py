"""The real model against transformers: within float32 rounding, and token for token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvlab.model.load import Loaded, load

PROMPTS = [
    "What is the capital of France? Answer in one sentence.",
    "Write one sentence about memory.",
    "What is 17 + 25?",
]


@pytest.fixture(scope="module")
def loaded(smollm2: Path) -> Loaded:
    return load({"name": "smollm2", "path": None}, "float32")


def test_capital_of_france(loaded: Loaded, greedy: Callable[..., list[int]]) -> None:
    assert loaded.tokenizer is not None
    output = greedy(loaded.model, loaded.tokenizer.chat(PROMPTS[0]), 8)
    assert loaded.tokenizer.decode(output) == "The capital of France is Paris."
    assert output[-1] in loaded.tokenizer.eos_ids


def test_bfloat16_says_the_same(smollm2: Path, greedy: Callable[..., list[int]]) -> None:
    coarse = load({"name": "smollm2", "path": None}, "bfloat16")
    assert coarse.tokenizer is not None
    output = greedy(coarse.model, coarse.tokenizer.chat(PROMPTS[0]), 8)
    assert coarse.tokenizer.decode(output) == "The capital of France is Paris."


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_equals_transformers_reading_the_same_file(
    smollm2: Path, loaded: Loaded, logits_of: Callable[..., Tensor], greedy: Callable[..., list[int]]
) -> None:
    """Transformers dequantises and permutes by itself here: nothing of ours is in the reference."""
    from transformers import AutoModelForCausalLM

    assert loaded.tokenizer is not None
    theirs: Any = AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    ).eval()
    for prompt in PROMPTS:
        ids = loaded.tokenizer.chat(prompt)
        ids_1T = torch.tensor([ids])
        with torch.inference_mode():
            expected_NV = theirs(ids_1T).logits[0]
            # The mask is given because transformers guesses one, and the token that ends a turn is also its padding.
            whole_1T = theirs.generate(
                ids_1T, attention_mask=torch.ones_like(ids_1T), max_new_tokens=32, do_sample=False
            )
        expected = whole_1T[0, len(ids) :].tolist()
        torch.testing.assert_close(logits_of(loaded.model, ids, [7, 8, 20]), expected_NV, rtol=0, atol=1e-3)
        assert greedy(loaded.model, ids, len(expected)) == expected, prompt
