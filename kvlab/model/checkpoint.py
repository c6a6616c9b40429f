"""A Llama checkpoint directory as Hugging Face lays it out.

config.json, safetensors (whole or in shards) and, for runs with real text, tokenizer.json.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.errors import UsageError
from kvlab.model.shape import RopeScaling, Shape, about
from kvlab.model.weights import Weights, fuse, open_safetensors, parts

if TYPE_CHECKING:
    from torch import Tensor

    from kvlab.model.tokenizer import Tokenizer

NAMES = {
    "embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head",
    "attention_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
    "v": "self_attn.v_proj", "out": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
# What a configuration may say beyond the sizes; anything else computes something that Llama here does not.
ALLOWED = {
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "partial_rotary_factor": 1.0,
    "quantization_config": None,
}  # fmt: skip


class Checkpoint:
    """A source of weights. UsageError on opening: not a directory with a LlamaForCausalLM."""

    dtypes = ("float32", "bfloat16", "float64")

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.resolve().name
        self.config = _read(folder / "config.json")
        with about(folder / "config.json"):
            self.shape = _shape(self.config)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """From tokenizer.json; None without one. UsageError: damaged."""
        from kvlab.model.tokenizer import from_directory

        eos = (self._beside("generation_config.json") or self.config).get("eos_token_id")
        ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        return from_directory(self.folder, ids, self._beside("tokenizer_config.json"))

    def _beside(self, name: str) -> dict[str, Any]:
        """An optional file: empty if it is not there."""
        path = self.folder / name
        return _read(path) if path.exists() else {}

    def begin(self) -> None:
        """There is nothing to do before `weights`."""

    def weights(self, dtype: str) -> Weights:
        """UsageError: a file or a tensor is missing, truncated or has another size than config.json says."""
        sizes = parts(self.shape)
        with ExitStack() as stack:
            files = {path: stack.enter_context(open_safetensors(path)) for path in self._paths()}
            where = {name: (path, file) for path, file in files.items() for name in file.keys()}  # noqa: SIM118

            def part(name: str) -> Tensor:
                stored = _stored_name(name)
                if stored not in where:
                    raise UsageError(f"{self.folder}: tensor {stored} is missing")
                path, file = where[stored]
                found = tuple(file.get_slice(stored).get_shape())
                if found != sizes[name]:
                    raise UsageError(f"{path}: tensor {stored} is {found}, by config.json {sizes[name]}")
                tensor: Tensor = file.get_tensor(stored)
                return tensor

            return fuse(self.shape, part, dtype)

    def _paths(self) -> list[Path]:
        index = self.folder / "model.safetensors.index.json"
        if not index.exists():
            return [self.folder / "model.safetensors"]
        shards = _read(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise UsageError(f"{index}: has no weight_map")
        return [self.folder / name for name in sorted(set(shards.values()))]


def _stored_name(part: str) -> str:
    layer, _, kind = part.removeprefix("layers.").rpartition(".")
    return f"model.layers.{layer}.{NAMES[kind]}.weight" if layer else f"{NAMES[kind]}.weight"


def _read(path: Path) -> dict[str, Any]:
    """A JSON object. UsageError: missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a JSON object")
    return value


def _shape(config: dict[str, Any]) -> Shape:
    architectures = config.get("architectures")
    if architectures != ["LlamaForCausalLM"]:
        raise UsageError(f"architectures {architectures}; allowed is ['LlamaForCausalLM']")
    for key, allowed in ALLOWED.items():
        if config.get(key, allowed) != allowed:
            raise UsageError(f"{key}={config[key]}; allowed is {allowed}")
    _refuse_windows(config)

    def number(key: str, default: float | None = None) -> Any:
        return _number(config, key, default)

    rope = _rope(config)
    hidden, q_heads = number("hidden_size"), number("num_attention_heads")
    return Shape(
        layers=number("num_hidden_layers"),
        q_heads=q_heads,
        kv_heads=number("num_key_value_heads", q_heads),
        head_dim=number("head_dim", hidden // q_heads),
        hidden=hidden,
        ffn=number("intermediate_size"),
        vocab=number("vocab_size"),
        rope_theta=float(_number(rope, "rope_theta", number("rope_theta", 10000.0))),
        rms_eps=float(number("rms_norm_eps", 1e-6)),
        tied=bool(config.get("tie_word_embeddings", False)),
        max_position=number("max_position_embeddings", 2048),
        rope_scaling=_scaling(rope),
    )


def _refuse_windows(config: dict[str, Any]) -> None:
    """UsageError: some layers read the last tokens only."""
    if config.get("sliding_window") is not None and config.get("use_sliding_window", True):
        raise UsageError(
            f"sliding_window={config['sliding_window']}; allowed is null: every layer here reads all tokens"
        )
    kinds = config.get("layer_types") or ["full_attention"]
    if kinds != ["full_attention"] * len(kinds):
        raise UsageError(f"layer_types={kinds}; allowed is full_attention in every layer")


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary part, which is called rope_parameters today and was called rope_scaling."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise UsageError(f"rope_parameters={rope}; allowed is an object")
    return rope


def _scaling(rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UsageError(f"rope_type {kind!r}; allowed is 'default' or 'llama3'")
    return RopeScaling(
        factor=_number(rope, "factor"),
        low_freq_factor=_number(rope, "low_freq_factor"),
        high_freq_factor=_number(rope, "high_freq_factor"),
        original_max_position=_number(rope, "original_max_position_embeddings"),
    )


def _number(values: dict[str, Any], key: str, default: float | None = None) -> Any:
    value = default if values.get(key) is None else values[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UsageError(f"{key}={value}; allowed is a number above 0")
    return value
