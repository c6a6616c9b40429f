"""What a device's memory leaves for the pool, and what is refused before anything is loaded."""

from __future__ import annotations

import pytest
import torch

from kvlab.engine.capacity import pool_bytes
from kvlab.engine.cuda.budget import launch_bytes, pool_budget, weight_bytes
from kvlab.engine.cuda.platform import open_platform
from kvlab.errors import UsageError
from kvlab.model.llama import Llama
from kvlab.model.load import open_source, shape_of
from kvlab.model.weights import random_weights
from kvlab.run import plan

GIB = 1 << 30


@pytest.fixture
def shape(config):
    return shape_of(config("paged")["model"])


def of(config, **changes):
    return config("paged", **{"pool_bytes": None, **changes})


def test_the_weights_are_counted_to_the_byte(config, shape):
    source = open_source(config("paged")["model"])
    model = Llama(shape, source.weights("bfloat16"), compiled=False)  # as on a device
    tensors = [model.embed_VC, model.norm_C, model.head.weight, model.cos_PD, model.sin_PD]
    for layer in model.layers:
        norms = (layer.attention_norm, layer.mlp_norm)
        tensors += [*norms, *(matrix.weight for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down))]
    assert weight_bytes(shape, "bfloat16") == sum(tensor.numel() for tensor in tensors) * 2


def test_random_weights_are_as_large_and_make_a_model(shape):
    weights = random_weights(shape, "float32", "cpu", seed=1)
    tables = 2 * shape.max_position * shape.head_dim * 4
    assert sum(tensor.nbytes for tensor in weights.values()) + tables == weight_bytes(shape, "float32")
    model = Llama(shape, weights)
    ids_T = torch.arange(5)
    logits_NV = model(ids_T, ids_T, lambda layer, q_TQD, k_THD, v_THD: q_TQD, ids_T)
    assert logits_NV.isfinite().all()
    assert 0.2 < logits_NV.std() < 5


def test_the_pool_is_what_the_fraction_leaves(config, shape):
    total = 2 * GIB
    parts = weight_bytes(shape, "float32") + launch_bytes(shape, "float32", 4)
    assert pool_budget(of(config), shape, total) == int(total * 0.9) - parts
    assert pool_budget(of(config, pool_fraction=0.5), shape, total) == int(total * 0.5) - parts
    assert pool_bytes(of(config), shape, total) == int(total * 0.9) - parts
    assert pool_bytes(of(config, pool_bytes=12345), shape, total) == 12345


def test_more_sequences_and_larger_models_leave_less(config, shape):
    total = 2 * GIB
    assert pool_budget(of(config, max_seqs=64), shape, total) < pool_budget(of(config), shape, total)


def test_nothing_left_is_refused_in_one_line(config, shape):
    with pytest.raises(UsageError, match=r"pool_fraction=0.5: of 67,108,864 bytes nothing is left") as caught:
        pool_budget(of(config, pool_fraction=0.5), shape, 64 << 20)
    assert "\n" not in str(caught.value)


def test_more_than_the_device_has_is_refused(config, shape):
    with pytest.raises(UsageError, match="a pool of 2 GiB: allowed is at most this device's memory, 1 GiB"):
        pool_bytes(of(config, pool_bytes=2 * GIB), shape, GIB)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_a_run_on_one_is_refused_before_it_loads(config):
    with pytest.raises(UsageError, match=r"device=cuda:1: torch \S+ sees no such device; allowed here is cpu"):
        plan(of(config, device="cuda:1", workload={"name": "fixed"}))


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA"])
def test_devices_that_are_none(device):
    with pytest.raises(UsageError, match=f"device={device}: allowed is cpu, cuda or cuda:N"):
        open_platform(device)
