"""Checkpoint directories: what is missing, damaged or of another kind is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kvlab.errors import UsageError
from kvlab.model.checkpoint import Checkpoint
from kvlab.model.load import load, shape_of
from kvlab.model.shape import Shape
from kvlab.model.weights import parts

SHAPE = Shape(
    layers=2, q_heads=4, kv_heads=2, head_dim=16, hidden=64, ffn=128, vocab=96,
    rope_theta=10000.0, rms_eps=1e-5, tied=False, max_position=256,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, write_checkpoint: Callable[..., None]) -> Path:
    torch.manual_seed(0)
    tensors = {name: torch.randn(size) for name, size in parts(SHAPE).items()}
    write_checkpoint(tmp_path / "llama", SHAPE, tensors)
    return tmp_path / "llama"


def edit(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def refusal(folder: Path) -> str:
    """The line with which the directory is refused."""
    with pytest.raises(UsageError) as caught:
        _ = load({"name": "tiny", "path": str(folder)}, "float32").tokenizer
    line = str(caught.value)
    assert "\n" not in line
    assert str(folder) in line
    return line


def test_shape_and_name(folder: Path) -> None:
    assert shape_of({"name": "tiny", "path": str(folder)}) == SHAPE
    loaded = load({"name": "tiny", "path": str(folder)}, "float64")
    assert (loaded.name, loaded.tokenizer) == ("llama", None)
    assert loaded.model.layers[0].qkv.weight.dtype is torch.float64


def test_shards_are_one_checkpoint(folder: Path, logits_of: Callable[..., Tensor]) -> None:
    config = {"name": "tiny", "path": str(folder)}
    whole_NV = logits_of(load(config, "float32").model, [1, 2, 3])
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"shard-{index % 3}.safetensors" for index, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        save_file({n: t for n, t in tensors.items() if weight_map[n] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(logits_of(load(config, "float32").model, [1, 2, 3]), whole_NV)
    (folder / "shard-1.safetensors").unlink()
    assert "shard-1.safetensors" in refusal(folder)


def test_missing_files(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(folder)
    (folder / "config.json").unlink()
    assert "config.json: cannot be read (No such file" in refusal(folder)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.9999])
def test_truncated_weights(folder: Path, share: float) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: int(len(whole) * share)])
    assert "not a readable safetensors file" in refusal(folder)


def test_missing_tensor_and_wrong_size(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.v_proj.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, folder / "model.safetensors")
    assert f"tensor {name} is missing" in refusal(folder)
    save_file(tensors | {name: torch.zeros(8, 64)}, folder / "model.safetensors")
    assert f"tensor {name} is (8, 64), by config.json (32, 64)" in refusal(folder)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"architectures": ["MistralForCausalLM"]}, "allowed is ['LlamaForCausalLM']"),
    "no model": ({"architectures": None}, "allowed is ['LlamaForCausalLM']"),
    "biases": ({"attention_bias": True}, "attention_bias=True; allowed is False"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act=gelu; allowed is silu"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config"),
    "windows": ({"sliding_window": 4096}, "sliding_window=4096; allowed is null"),
    "windows in some layers": (
        {"layer_types": ["full_attention", "sliding_attention"]},
        "layer_types=['full_attention', 'sliding_attention']; allowed is full_attention",
    ),
    "scaling": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type 'linear'"),
    "half a scaling": ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor=None"),
    "no size": ({"hidden_size": None}, "hidden_size=None; allowed is a number"),
    "a word for a size": ({"num_hidden_layers": "many"}, "num_hidden_layers=many"),
    "a fraction": ({"num_hidden_layers": 1.5}, "layers=1.5"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads=0"),
    "heads do not divide": ({"num_key_value_heads": 3}, "kv_heads=3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_configurations_that_are_refused(folder: Path, case: str) -> None:
    values, line = REFUSED[case]
    edit(folder, **values)
    assert line in refusal(folder)


def test_a_window_that_is_switched_off_is_none(folder: Path) -> None:
    edit(folder, sliding_window=4096, use_sliding_window=False, layer_types=["full_attention"] * SHAPE.layers)
    assert shape_of({"name": "tiny", "path": str(folder)}) == SHAPE


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\xff"])
def test_config_that_is_not_a_json_object(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text, encoding="latin-1")
    assert "not " in refusal(folder)


def test_tokenizer_of_the_directory(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"hello": 5, "user": 6, "?": 7}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(folder / "tokenizer.json"))
    edit(folder, eos_token_id=2)
    tokenizer = Checkpoint(folder).tokenizer
    assert tokenizer is not None
    assert (tokenizer.encode("hello you"), tokenizer.eos_ids) == ([5, 7], {2})
    with pytest.raises(UsageError, match="no chat template"):
        tokenizer.chat("hello")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    template = "{% for m in messages %}{{ m.role }} {{ m.content }}{% endfor %}{{ bos_token }}"
    special = {"content": " hello"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "bos_token": special}))
    tokenizer = Checkpoint(folder).tokenizer
    assert tokenizer is not None
    assert (tokenizer.chat("hello"), tokenizer.eos_ids) == ([6, 5, 5], {2, 3})
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    with pytest.raises(UsageError, match="template fails"):
        Checkpoint(folder).tokenizer.chat("hello")  # type: ignore[union-attr]
    (folder / "tokenizer.json").write_text("{")
    assert "tokenizer.json: not a readable tokenizer" in refusal(folder)
