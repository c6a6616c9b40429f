"""How much of a device's memory the pool may have: a share of all, less the weights and what a launch takes beside."""

from __future__ import annotations

from math import prod
from typing import Any

from kvlab.engine.cuda.graphs import buckets
from kvlab.engine.cuda.pieces import MOST_TOKENS
from kvlab.errors import UsageError
from kvlab.model.shape import DTYPE_BYTES, Shape
from kvlab.model.weights import parts

FRACTION = 0.9  # of the memory; the rest is for the driver's context, kernels and what estimates miss
WORKSPACE_BYTES = 64 << 20  # of matrix products
GRAPH_BYTES = 4 << 20  # of one graph in the driver


def pool_budget(config: dict[str, Any], shape: Shape, total_bytes: int) -> int:
    """Bytes of the pool by `pool_fraction`. UsageError: nothing is left for it."""
    fraction = FRACTION if config.get("pool_fraction") is None else float(config["pool_fraction"])
    weights = weight_bytes(shape, config["dtype"])
    beside = launch_bytes(shape, config["dtype"], int(config["engine"]["max_seqs"]))
    left = int(total_bytes * fraction) - weights - beside
    if left < shape.token_bytes(config["dtype"]):
        raise UsageError(
            f"pool_fraction={fraction}: of {total_bytes:,} bytes nothing is left beside weights ({weights:,}) and a "
            f"launch (about {beside:,}); allowed is a larger fraction, a smaller model, or fewer engine.max_seqs"
        )
    return left


def weight_bytes(shape: Shape, dtype: str) -> int:
    """Of the weights and the tables of positions."""
    values = sum(prod(size) for size in parts(shape).values())
    return (values + 2 * shape.max_position * shape.head_dim) * DTYPE_BYTES[dtype]


def launch_bytes(shape: Shape, dtype: str, max_seqs: int) -> int:
    """An estimate, from above: what lives at once in a layer of the largest piece, logits, and all graphs."""
    each = 6 * shape.hidden + 5 * shape.ffn + 4 * (shape.q_heads + 2 * shape.kv_heads) * shape.head_dim
    activations = MOST_TOKENS * each * DTYPE_BYTES[dtype]
    logits = 3 * max_seqs * shape.vocab * 4
    graphs = 2 * len(buckets(max_seqs)) * GRAPH_BYTES
    return activations + logits + graphs + WORKSPACE_BYTES
