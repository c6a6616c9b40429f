"""What the tests of the model layer share."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from kvlab.errors import UsageError
from kvlab.model.fetch import fetch_model
from kvlab.model.llama import Llama
from kvlab.model.shape import Shape
from kvlab.model.weights import parts

TINY = {
    "name": "tiny", "path": None, "seed": 0, "layers": 2, "q_heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64,
    "ffn": 128, "vocab": 257, "rope_theta": 10000.0, "rms_eps": 1e-5, "tied": False, "max_position": 8192,
}  # fmt: skip


class OneSequence:
    """Attention over one sequence's keys and values, written as the formula is."""

    def __init__(self) -> None:
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q_TQD: Tensor, k_THD: Tensor, v_THD: Tensor) -> Tensor:
        if layer in self.stored:
            k_THD, v_THD = (torch.cat(both) for both in zip(self.stored[layer], (k_THD, v_THD), strict=True))
        self.stored[layer] = (k_THD.clone(), v_THD.clone())
        k_SQD, v_SQD = (x.repeat_interleave(q_TQD.shape[1] // x.shape[1], dim=1) for x in (k_THD, v_THD))
        new, stored = len(q_TQD), len(k_SQD)
        score_QTS = torch.einsum("tqd,sqd->qts", q_TQD, k_SQD) / q_TQD.shape[-1] ** 0.5
        future_TS = torch.ones(new, stored, dtype=torch.bool).triu(stored - new + 1)
        return torch.einsum("qts,sqd->tqd", score_QTS.masked_fill(future_TS, -torch.inf).softmax(-1), v_SQD)


def _logits_of(model: Llama, ids: list[int], cuts: Sequence[int] = ()) -> Tensor:
    """logits_NV of every token, the sequence fed in pieces that end at `cuts`."""
    attention, pieces = OneSequence(), []
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        position_T = torch.arange(start, stop)
        rows_N = torch.arange(stop - start)
        pieces.append(model(torch.tensor(ids[start:stop]), position_T, attention, rows_N))
    return torch.cat(pieces)


def _greedy(model: Llama, ids: list[int], count: int) -> list[int]:
    """`count` greedy tokens."""
    attention, output = OneSequence(), list[int]()
    step = ids
    for _ in range(count):
        start = len(ids) + len(output) - len(step)
        position_T = torch.arange(start, start + len(step))
        logits_NV = model(torch.tensor(step), position_T, attention, torch.tensor([len(step) - 1]))
        step = [int(logits_NV[0].argmax())]
        output += step
    return output


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF of the real model."""
    try:
        return fetch_model()
    except UsageError as error:
        pytest.skip(f"needs the real model: {error}")


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    """Of torch, unless a test says otherwise."""


@pytest.fixture
def tiny_config() -> dict[str, Any]:
    """The `model` part of a configuration, as conf/model/tiny.yaml has it."""
    return dict(TINY)


@pytest.fixture(scope="session")
def logits_of() -> Callable[..., Tensor]:
    return _logits_of


@pytest.fixture(scope="session")
def greedy() -> Callable[..., list[int]]:
    return _greedy


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., None]:
    return _write_gguf


GGUF_NAMES = {
    "embed": "token_embd", "norm": "output_norm", "head": "output",
    "attention_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "out": "attn_output",
    "mlp_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip


def _write_gguf(
    path: Path,
    shape: Shape,
    *,
    change: Callable[[dict[str, Any]], object] = lambda metadata: None,
    architecture: str = "llama",
) -> None:
    """A GGUF file of random float32 weights, by the library that defines the format."""
    import gguf
    import numpy as np

    metadata: dict[str, Any] = {
        "llama.block_count": shape.layers,
        "llama.context_length": shape.max_position,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.ffn,
        "llama.attention.head_count": shape.q_heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": shape.rope_theta,
        "tensors": parts(shape),
    }
    change(metadata)
    writer = gguf.GGUFWriter(path, architecture)
    random = np.random.default_rng(0)
    for name, size in metadata.pop("tensors").items():
        layer, _, kind = name.removeprefix("layers.").rpartition(".")
        stored = f"blk.{layer}.{GGUF_NAMES[kind]}.weight" if layer else f"{GGUF_NAMES.get(kind, kind)}.weight"
        writer.add_tensor(stored, random.standard_normal(size).astype(np.float32))
    for key, value in metadata.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add[type(value)](key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_checkpoint(folder: Path, shape: Shape, tensors: dict[str, Tensor]) -> None:
    """A checkpoint directory with the parts of a model."""
    names = {
        "embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head",
        "attention_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
        "v": "self_attn.v_proj", "out": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    }  # fmt: skip
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.q_heads,
        "num_key_value_heads": shape.kv_heads,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocab,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.rms_eps,
        "max_position_embeddings": shape.max_position,
    }
    stored = {}
    for name, tensor in tensors.items():
        layer, _, kind = name.removeprefix("layers.").rpartition(".")
        stored[f"model.layers.{layer}.{names[kind]}.weight" if layer else f"{names[kind]}.weight"] = tensor
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(stored, folder / "model.safetensors")


@pytest.fixture(scope="session")
def write_checkpoint() -> Callable[..., None]:
    return _write_checkpoint
