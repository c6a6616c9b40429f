"""A model's weights by name, fused as the model multiplies them, and the safetensors files that hold them.

A reader (checkpoint.py, gguf.py, tiny.py) hands out the parts of a published Llama, one tensor at a time;
`fuse` stacks q, k, v and gate, up into one matrix each, in the dtype asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.errors import UsageError
from kvlab.model.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

Part = tuple[str, tuple[int, ...]]  # name and shape of what a reader hands out
Weights = dict[str, "Tensor"]


def layout(shape: Shape) -> dict[str, list[Part]]:
    """The parts that make up each fused tensor, top to bottom; `layers.3.qkv` from `layers.3.q` and so on."""
    whole: dict[str, list[Part]] = {
        "embed": [("embed", (shape.vocab, shape.hidden))],
        "norm": [("norm", (shape.hidden,))],
    }
    if not shape.tied:
        whole["head"] = [("head", (shape.vocab, shape.hidden))]
    for index in range(shape.layers):
        for name, parts in _layer(shape).items():
            whole[f"layers.{index}.{name}"] = [(f"layers.{index}.{part}", size) for part, size in parts]
    return whole


def _layer(shape: Shape) -> dict[str, list[Part]]:
    hidden, queries, keys = shape.hidden, shape.q_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "attention_norm": [("attention_norm", (hidden,))],
        "qkv": [("q", (queries, hidden)), ("k", (keys, hidden)), ("v", (keys, hidden))],
        "out": [("out", (hidden, queries))],
        "mlp_norm": [("mlp_norm", (hidden,))],
        "gate_up": [("gate", (shape.ffn, hidden)), ("up", (shape.ffn, hidden))],
        "down": [("down", (hidden, shape.ffn))],
    }


def parts(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Every part and its shape."""
    return {name: size for stack in layout(shape).values() for name, size in stack}


def _stacked(stack: list[Part]) -> tuple[int, ...]:
    return (sum(size[0] for _, size in stack), *stack[0][1][1:])


def fuse(shape: Shape, part: Callable[[str], Tensor], dtype: str) -> Weights:
    """All fused tensors in `dtype`; `part` gives the tensor of a name, and answers for its shape."""
    import torch

    weights = {}
    for name, stack in layout(shape).items():
        whole = torch.empty(_stacked(stack), dtype=getattr(torch, dtype))
        row = 0
        for part_name, size in stack:
            whole[row : row + size[0]] = part(part_name)
            row += size[0]
        weights[name] = whole
    return weights


def onto(device: str, weights: Weights) -> Weights:
    """The weights moved there, one at a time, so that at most one of them is in both places."""
    for name in weights:
        weights[name] = weights[name].to(device)
    return weights


def random_weights(shape: Shape, dtype: str, device: str, seed: int = 0) -> Weights:
    """Weights of any size at once, for measuring: each row of a matrix keeps the size of what it is applied to."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    weights = {}
    for name, stack in layout(shape).items():
        size = _stacked(stack)
        whole = torch.empty(size, dtype=getattr(torch, dtype), device=device)
        weights[name] = whole.fill_(1) if len(size) == 1 else whole.normal_(0, size[-1] ** -0.5, generator=generator)
    return weights


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """The file's tensors by name, read lazily and memory-mapped. UsageError: missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: not a readable safetensors file ({error})") from error


def save_safetensors(weights: Weights, path: Path) -> None:
    """Writes the file. UsageError: it cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(weights, path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: cannot be written ({error})") from error


def load_fused(shape: Shape, path: Path) -> Weights:
    """What save_safetensors wrote: pages of the file, read when they are first used."""
    with open_safetensors(path) as file:
        return {name: file.get_tensor(name) for name in layout(shape)}
