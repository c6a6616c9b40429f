"""The model computes what transformers computes from the same checkpoint directory."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from kvlab.model.load import load

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one key head": {"num_key_value_heads": 1},
    "as many key heads": {"num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True},
    "wide heads": {"head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "llama 3.1": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}
IDS = torch.randint(0, 257, (90,), generator=torch.Generator().manual_seed(0)).tolist()
PIECES = [1, 16, 17, 50]  # where the sequence is cut when it is fed in pieces


def checkpoint(folder: Path, dtype: torch.dtype, **variant: Any) -> LlamaForCausalLM:
    """A random model, saved in `folder`; weights large enough that attention is not uniform."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        **{"num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.2} | variant,
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-5)])
def test_equals_transformers(
    tmp_path: Path, variant: str, dtype: str, tolerance: float, logits_of: Callable[..., Tensor]
) -> None:
    """Within rounding; transformers takes its norms in float32, also in a float64 model."""
    theirs = checkpoint(tmp_path, getattr(torch, dtype), **VARIANTS[variant])
    ours = load({"name": "tiny", "path": str(tmp_path)}, dtype).model
    with torch.inference_mode():
        expected_NV = theirs(torch.tensor([IDS])).logits[0]
    assert expected_NV.std() > 0.5
    torch.testing.assert_close(logits_of(ours, IDS), expected_NV, rtol=0, atol=tolerance)
    torch.testing.assert_close(logits_of(ours, IDS, PIECES), expected_NV, rtol=0, atol=tolerance)


def test_bfloat16_equals_transformers(tmp_path: Path, logits_of: Callable[..., Tensor]) -> None:
    theirs = checkpoint(tmp_path, torch.bfloat16)
    ours = load({"name": "tiny", "path": str(tmp_path)}, "bfloat16").model
    with torch.inference_mode():
        expected_NV = theirs(torch.tensor([IDS])).logits[0].float()
        exact_NV = theirs.float()(torch.tensor([IDS])).logits[0]
    found_NV = logits_of(ours, IDS)
    assert found_NV.dtype is torch.float32
    # Both round on their way, each its own; neither may be further from the truth.
    assert (found_NV - exact_NV).std() < 1.2 * (expected_NV - exact_NV).std()


def test_float64_refines_float32(tiny_config: dict[str, Any], logits_of: Callable[..., Tensor]) -> None:
    fine_NV = logits_of(load(tiny_config, "float64").model, IDS)
    coarse_NV = logits_of(load(tiny_config, "float32").model, IDS)
    assert fine_NV.dtype is torch.float64
    assert 0 < (fine_NV - coarse_NV).abs().max() < 1e-4


def test_float64_does_not_depend_on_the_pieces(tiny_config: dict[str, Any], logits_of: Callable[..., Tensor]) -> None:
    """Not even as much as a float32 somewhere on the way would make it."""
    model = load(tiny_config, "float64").model
    whole_NV = logits_of(model, IDS)
    torch.testing.assert_close(logits_of(model, IDS, range(1, 90)), whole_NV, rtol=0, atol=1e-11)


def test_rows_are_those_asked_for(tiny_config: dict[str, Any], logits_of: Callable[..., Tensor]) -> None:
    """Two sequences packed: an attention that mixes nothing shows whose row is whose."""
    model = load(tiny_config, "float64").model
    ids_T, position_T = torch.tensor([5, 6, 7, 5]), torch.tensor([0, 1, 2, 0])
    logits_NV = model(ids_T, position_T, lambda layer, q_TQD, k_THD, v_THD: q_TQD, torch.tensor([3, 1, 0]))
    assert logits_NV.shape == (3, 257)
    torch.testing.assert_close(logits_NV[0], logits_NV[2], rtol=0, atol=1e-12)
    assert not torch.allclose(logits_NV[0], logits_NV[1])


def test_a_position_beyond_the_last_is_an_error(tiny_config: dict[str, Any]) -> None:
    model = load(tiny_config | {"max_position": 8}, "float32").model
    with pytest.raises(IndexError):
        model(torch.tensor([1]), torch.tensor([8]), lambda layer, q, k, v: q, torch.tensor([0]))


def test_tiny_output_varies_and_remembers(tiny_config: dict[str, Any], greedy: Callable[..., list[int]]) -> None:
    """What the strategies are tested with: an output that a single lost or misplaced key would change."""
    model = load(tiny_config, "float64").model
    prompt = IDS[:40]
    output = greedy(model, prompt, 64)
    assert len(set(output)) > 20
    assert greedy(model, [prompt[0] ^ 1, *prompt[1:]], 64) != output
    assert greedy(model, [*prompt[:20], prompt[20] ^ 1, *prompt[21:]], 64) != output


def test_tiny_is_its_seed(tiny_config: dict[str, Any], logits_of: Callable[..., Tensor]) -> None:
    first_NV, again_NV = (logits_of(load(tiny_config, "float64").model, IDS) for _ in range(2))
    other_NV = logits_of(load(tiny_config | {"seed": 1}, "float64").model, IDS)
    assert torch.equal(first_NV, again_NV)
    assert not torch.allclose(first_NV, other_NV)
    assert math.isfinite(float(first_NV.sum()))
