"""The files in conf/gpu, conf/vmm and conf/cost: each is whole, and they order GPUs as their bandwidths do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

import kvlab.conf
from kvlab.moves import Map

CONF = Path(kvlab.conf.__path__[0])


def names(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def published():
    """GPUs that are known by their data sheets, not by a table of measured products."""
    return [
        name for name in names("gpu") if yaml.safe_load((CONF / f"gpu/{name}.yaml").read_text())["products"] is None
    ]


@pytest.fixture(scope="module")
def built(build):
    return {name: build("Qwen2.5-0.5B", strategy="paged", gpu=name) for name in published()}


def test_every_published_gpu_decodes_as_fast_as_it_reads(built):
    bandwidth = {name: one.config["gpu"]["bandwidth_gb_s"] for name, one in built.items()}
    seconds = {name: one.cost.decode(32, 32 * 2000, 1)[0] for name, one in built.items()}
    assert set(built) == {"a100_40", "a100_80", "h100", "h200", "t4", "l4", "a10g"}
    assert sorted(built, key=lambda name: seconds[name]) == sorted(built, key=lambda name: -bandwidth[name])


def test_every_published_gpu_reads_prompts_as_fast_as_it_multiplies(built):
    peak = {name: one.config["gpu"]["tflops_16bit"] for name, one in built.items()}
    seconds = {name: one.cost.launch(np.full(8, 4000), np.full(8, 4000), 8) for name, one in built.items()}
    order = sorted(built, key=lambda name: seconds[name])
    assert [peak[name] for name in order] == sorted(peak.values(), reverse=True)


@pytest.mark.parametrize("vmm", [name for name in names("vmm") if name != "cpu"])
def test_a_page_of_2_mib_has_a_price_everywhere(build, vmm):
    """Tens of microseconds a page, whoever measured."""
    assert 64 * 30e-6 < build(strategy="vattention", vmm=vmm).cost.moves([Map(0, 0)]) < 64 * 50e-6


@pytest.mark.parametrize("kernel", ["flash_attn", "flashinfer", "kvlab", "sdpa", "vllm_sosp23", "vllm_0_2"])
def test_no_kernel_is_quicker_over_blocks(build, kernel):
    factors = build(strategy="paged", cost__kernel=kernel).cost.factors
    assert factors.decode >= 1
    assert (factors.prefill(np.array([1, 100, 1024, 5000, 100_000])) >= 1).all()
