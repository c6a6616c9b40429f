"""What `kvlab bench kernels device=cuda` runs, over a tiny shape, under the interpreter where there is no device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.bench.kernels import measure
from kvlab.bench.moves import moves_on
from kvlab.bench.pools import Attention, Plan, Shape
from kvlab.bench.timing import cpu_clock, cuda_clock
from kvlab.engine.attentions.gpu import KvlabGpu
from kvlab.harness.cli import main

OPS = ("decode", "prefill", "append", "copy")


def test_each_of_our_kernels_is_right_and_measured(device):
    shape = Shape(batch=2, length=16, q_heads=4, kv_heads=2, head_dim=16, dtype="float32")
    clock = cuda_clock if device == "cuda" else cpu_clock
    plan = Plan(
        device, {"kvlab": Attention(KvlabGpu(device))}, moves_on("cuda"), OPS, (16,),
        clock, repeats=1, least_s=1e-9, cold_bytes=1,
    )  # fmt: skip
    rows = measure(shape, plan)[2:]
    assert [(row["op"], row["geometry"]) for row in rows] == [
        ("decode", "rows"), ("decode", "blocks"), ("prefill", "rows"), ("prefill", "blocks"),
        ("append", None), ("copy", None),
    ]  # fmt: skip
    assert all(row["us_median"] > 0 for row in rows)


def test_all_layers_are_copied(device):
    layers = [tuple(torch.randn(64, 2, 16, device=device) for _ in "kv") for _ in range(2)]
    expected = [x[:16].clone() for layer in layers for x in layer]
    moves_on("cuda").copy_in(layers)(np.array([0]), np.array([32]), 16)
    assert all(torch.equal(x[32:48], y) for x, y in zip([x for layer in layers for x in layer], expected, strict=True))


@pytest.mark.gpu
def test_on_a_device_the_command_runs(capsys):
    small = ["batch=2", "length=256", "block_sizes=16", "attention=kvlab,sdpa"]
    assert main(["bench", "kernels", "device=cuda", *small, "--repeats", "2"]) == 0
    assert '"device": "cuda"' in capsys.readouterr().out
