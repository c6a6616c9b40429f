"""Layers in C: what torch computes, whoever shares the step, however many threads there are, on any instruction set."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kvlab.kernels import compiler, layer
from kvlab.model.compiled import fits
from kvlab.model.llama import Llama
from kvlab.model.load import open_source
from kvlab.model.matrix import Matrix

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

# Sizes that fill no panel, no head of sixteen, no pair of panels; and sizes that fill all of them.
ODD = {"hidden": 38, "ffn": 50, "q_heads": 4, "kv_heads": 1, "head_dim": 12, "vocab": 261}
EVEN = {"hidden": 64, "ffn": 96, "q_heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 256}
SETS = {
    "AVX-512 with BF16": ("-march=x86-64-v4", "-mavx512bf16"),
    "AVX-512": ("-march=x86-64-v4",),
    "AVX2": ("-march=x86-64-v3",),
    "portable": ("-march=x86-64",),
}


def model_of(tiny_config: dict[str, Any], sizes: dict[str, int], dtype: str, compiled: bool = True) -> Llama:
    source = open_source(tiny_config | sizes)
    return Llama(source.shape, source.weights(dtype), compiled)


def logits(model: Llama, ids: list[int], positions: list[int], rows: list[int] | None = None) -> Tensor:
    """With an attention that hands every token's queries back: each token is on its own."""
    rows_N = torch.tensor(range(len(ids)) if rows is None else rows)
    return model(torch.tensor(ids), torch.tensor(positions), lambda layer, q_TQD, k_THD, v_THD: q_TQD, rows_N)


def ids_of(count: int) -> list[int]:
    return [(37 * i + 5) % 251 for i in range(count)]


@pytest.mark.parametrize("count", [1, 7, 23, 200])
@pytest.mark.parametrize("sizes", [ODD, EVEN], ids=["odd", "even"])
def test_float32_is_what_torch_computes(
    tiny_config: dict[str, Any], sizes: dict[str, int], count: int, logits_of: Callable[..., Tensor]
) -> None:
    ours, torchs = (model_of(tiny_config, sizes, "float32", compiled) for compiled in (True, False))
    assert (ours.compiled is None, torchs.compiled is None) == (False, True)
    ids = ids_of(count)
    torch.testing.assert_close(logits_of(ours, ids), logits_of(torchs, ids), rtol=0, atol=2e-5)


@pytest.mark.parametrize("sizes", [ODD, EVEN], ids=["odd", "even"])
def test_bfloat16_is_no_further_from_the_truth_than_torch(
    tiny_config: dict[str, Any], sizes: dict[str, int], logits_of: Callable[..., Tensor]
) -> None:
    ours, torchs = (model_of(tiny_config, sizes, "bfloat16", compiled) for compiled in (True, False))
    source = open_source(tiny_config | sizes)
    rounded = {name: weight.double() for name, weight in source.weights("bfloat16").items()}
    ids = ids_of(90)
    true_NV = logits_of(Llama(source.shape, rounded), ids)
    ours_NV, torchs_NV = logits_of(ours, ids), logits_of(torchs, ids)
    assert ours_NV.dtype is torch.float32
    assert 0 < (ours_NV - true_NV).std() < 1.1 * (torchs_NV - true_NV).std()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [ODD, EVEN], ids=["odd", "even"])
def test_a_token_does_not_depend_on_its_company(
    tiny_config: dict[str, Any], sizes: dict[str, int], dtype: str, threads: Callable[[int], None]
) -> None:
    """Steps of few tokens share their products among threads, long ones do not; both give the same bits."""
    model = model_of(tiny_config, sizes, dtype)
    ids, positions = ids_of(400), [3 * i % 97 for i in range(400)]
    threads(1)
    alone_NV = torch.cat([logits(model, ids[i : i + 1], positions[i : i + 1]) for i in range(400)])
    for count in (1, 2, 3):
        threads(count)
        for size in (2, 6, 7, 10, 11, 39, 40, 79, 80, 81, 120, 121, 400):
            assert torch.equal(logits(model, ids[:size], positions[:size]), alone_NV[:size]), (count, size)


def test_a_token_that_is_no_number_spoils_nobody_else(tiny_config: dict[str, Any]) -> None:
    model = model_of(tiny_config, EVEN, "bfloat16")
    model.embed_VC = model.embed_VC.clone()
    model.embed_VC[5] = torch.nan
    found_NV = logits(model, [1, 5, 2], [0, 0, 0])
    assert found_NV[1].isnan().all()
    assert torch.equal(found_NV[[0, 2]], logits(model, [1, 2], [0, 0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_instruction_set(
    tiny_config: dict[str, Any], name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    """Each is compiled; those that this machine has are run."""
    expected_NV = logits(model_of(tiny_config, ODD, str(dtype).removeprefix("torch.")), ids_of(50), [1] * 50)
    flags = tuple(flag for flag in compiler.FLAGS if not flag.startswith("-march"))
    monkeypatch.setattr(compiler, "FLAGS", (*SETS[name], *flags))
    layer.functions.cache_clear()
    request.addfinalizer(layer.functions.cache_clear)
    assert layer.functions(dtype) is not None
    if not has(name):
        pytest.skip(f"compiled, but this machine has no {name}")
    model = model_of(tiny_config, ODD, str(dtype).removeprefix("torch."))
    found_NV = logits(model, ids_of(50), [1] * 50)
    tolerance = 1e-4 if dtype is torch.float32 else 0.1
    torch.testing.assert_close(found_NV, expected_NV, rtol=0, atol=tolerance)


def has(name: str) -> bool:
    words = {"AVX-512 with BF16": "avx512_bf16", "AVX-512": "avx512vl", "AVX2": "avx2", "portable": "sse2"}
    with open("/proc/cpuinfo") as file:
        return words[name] in file.read().split()


def test_without_a_compiler_it_runs_in_torch_and_says_so_once(
    tiny_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, request: Any
) -> None:
    expected_NV = logits(model_of(tiny_config, EVEN, "float32"), ids_of(20), [0] * 20)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    layer.functions.cache_clear()
    compiler._warn.cache_clear()
    request.addfinalizer(layer.functions.cache_clear)
    model = model_of(tiny_config, EVEN, "float32")
    assert model.compiled is None
    assert model.layers[0].qkv.product != "c"
    torch.testing.assert_close(logits(model, ids_of(20), [0] * 20), expected_NV, rtol=0, atol=2e-5)
    assert [record.message for record in caplog.records] == [
        "no C compiler: attention, layers and copies run in torch, several times slower"
    ]


def test_what_does_not_fit_runs_in_torch(tiny_config: dict[str, Any]) -> None:
    """Queries that end inside a panel; a type that C is not compiled for."""
    assert fits(open_source(tiny_config | ODD).shape, torch.float32, "cpu")
    assert not fits(open_source(tiny_config | ODD | {"head_dim": 10}).shape, torch.float32, "cpu")
    assert not fits(open_source(tiny_config | ODD).shape, torch.float64, "cpu")
    assert not fits(open_source(tiny_config | ODD).shape, torch.float32, "cuda")
    assert model_of(tiny_config, ODD | {"head_dim": 10}, "float32").compiled is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_a_matrix_by_itself(dtype: torch.dtype, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight_OI = torch.randn(37, 26, generator=generator).to(dtype)
    x_TI = torch.randn(rows, 26, generator=generator).to(dtype)
    matrix = Matrix(weight_OI)
    assert (matrix.product == "c") == (dtype is not torch.float64)
    expected_TO = x_TI.double() @ weight_OI.double().T
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.13, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(matrix(x_TI).double(), expected_TO, rtol=0, atol=tolerance)
