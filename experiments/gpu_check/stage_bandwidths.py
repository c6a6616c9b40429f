"""How fast attention reads keys and values, over rows and blocks, beside torch's own and beside a measured copy."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from common import MIB, open_device

from kvlab.bench.kernels import measure
from kvlab.bench.moves import moves_on
from kvlab.bench.pools import Attention, Plan, Shape
from kvlab.bench.timing import cuda_clock, take_turns, wall_clock

SHAPES = (Shape(64, 4096, 32, 8, 128, "bfloat16"), Shape(8, 16384, 32, 8, 128, "bfloat16"))
REHEARSED = (Shape(2, 20, 2, 1, 64, "float32"),)
NODES = {
    "kvlab": {"_target_": "kvlab.engine.kernels.Kvlab"},
    "sdpa": {"_target_": "kvlab.engine.attentions.sdpa.Sdpa"},
}


def run(report: Any) -> None:
    platform, rehearsal = open_device(report.rehearsal), report.rehearsal
    device = str(platform.device)
    plan = Plan(
        device=device,
        attentions={name: Attention(platform.build_kernels(node)) for name, node in NODES.items()},
        moves=moves_on("cuda"),
        ops=("decode", "append", "copy"),
        block_sizes=(16,) if rehearsal else (16, 64),
        clock=wall_clock if rehearsal else cuda_clock,
        repeats=2 if rehearsal else 7,
        least_s=1e-9 if rehearsal else 0.01,
        cold_bytes=1 if rehearsal else 512 * MIB,
    )
    for shape in REHEARSED if rehearsal else SHAPES:
        for row in measure(shape, plan):
            report.add(**row)
        report.add(**_dense(shape, device, plan))
        if not rehearsal:
            torch.cuda.empty_cache()


def _dense(shape: Shape, device: str, plan: Plan) -> dict[str, Any]:
    """torch's batched attention over a plain tensor: what a server without any memory management would call."""
    size = (shape.batch, shape.length, shape.kv_heads, shape.head_dim)
    k, v = (torch.randn(size, dtype=shape.torch_dtype, device=device).transpose(1, 2) for _ in "kv")
    q = torch.randn(shape.batch, shape.q_heads, 1, shape.head_dim, dtype=shape.torch_dtype, device=device)
    call = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, enable_gqa=True)
    (spread,) = take_turns([(call, 1)], plan.clock, plan.repeats, plan.least_s)
    return {
        "op": "decode",
        "attention": "torch, dense batch",
        "geometry": "tensor",
        "block_size": None,
        "kernel": "scaled_dot_product_attention",
        **shape._asdict(),
        "us_median": round(1e6 * spread.median, 3),
        "gb_per_s": round(shape.kv_bytes / spread.median / 1e9, 3),
    }
