"""What one of several GPUs holds and multiplies when a model is split over them, tensor-parallel.

Heads, the feed-forward part and the vocabulary are split; where there are more GPUs than key/value heads, each GPU
holds one head that others hold too. Counts are of the GPU that holds most.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.errors import UsageError
from kvlab.model.shape import Shape
from kvlab.model.shapes import Sizes
from kvlab.strategy import ceil_div

VALUE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1}


def value_bytes(name: str, dtype: str) -> int:
    """Bytes of a number; `name` is the key that says so."""
    if dtype not in VALUE_BYTES:
        raise UsageError(f"{name}={dtype}: allowed here is {', '.join(VALUE_BYTES)}")
    return VALUE_BYTES[dtype]


def token_bytes(shape: Shape, kv_dtype: str, tensor_parallel: int = 1) -> int:
    """Bytes of one token's keys and values in every layer on one GPU. UsageError: it cannot be split so."""
    rank = Rank.of(shape, tensor_parallel)
    return 2 * shape.layers * rank.kv_heads * shape.head_dim * value_bytes("kv_dtype", kv_dtype)


def mlp_matrices(shape: Shape) -> int:
    """Matrices of the feed-forward part: three, where nothing says that there is no gate."""
    return shape.mlp_matrices if isinstance(shape, Sizes) else 3


@dataclass(frozen=True)
class Rank:
    """One GPU's part. Weights are numbers, not bytes."""

    ranks: int
    q_heads: int
    kv_heads: int
    body_weights: int  # in the matrices of all layers
    head_weights: int  # in the matrix that makes logits
    stored_weights: int  # everything: matrices, embedding, norms
    activations: int  # numbers that a token's products read and write, in all layers
    head_activations: int  # and for its logits

    @classmethod
    def of(cls, shape: Shape, ranks: int) -> Rank:
        """UsageError: the heads cannot be split over so many."""
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1 or shape.q_heads % ranks:
            raise UsageError(f"tensor_parallel={ranks}: allowed is a divisor of the model's {shape.q_heads} heads")
        if shape.kv_heads % ranks and ranks % shape.kv_heads:
            allowed = f"a divisor or a multiple of the model's {shape.kv_heads} key/value heads"
            raise UsageError(f"tensor_parallel={ranks}: allowed is {allowed}")
        q_heads, kv_heads = shape.q_heads // ranks, max(1, shape.kv_heads // ranks)
        hidden, ffn = shape.hidden, ceil_div(shape.ffn, ranks) * mlp_matrices(shape)
        q, qkv = q_heads * shape.head_dim, (q_heads + 2 * kv_heads) * shape.head_dim
        body = shape.layers * hidden * (qkv + q + ffn)
        head = ceil_div(shape.vocab, ranks) * hidden
        norms = (2 * shape.layers + 1) * hidden
        return cls(
            ranks=ranks,
            q_heads=q_heads,
            kv_heads=kv_heads,
            body_weights=body,
            head_weights=head,
            stored_weights=body + head * (1 if shape.tied else 2) + norms,
            activations=shape.layers * (4 * hidden + qkv + q + ffn),
            head_activations=hidden + ceil_div(shape.vocab, ranks),
        )
