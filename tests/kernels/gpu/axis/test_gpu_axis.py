"""Other people's kernels behind `attention`: the adapters over stand-ins that do, and check, what their documents say.

A stand-in is the documented meaning of one call in plain torch. So the arguments that an adapter makes are judged
by the results that follow from them, on any machine; the real packages are judged where there is a device.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.engine.attentions.flash2 import KEYWORDS, POSITIONS, Flash2, operator
from kvlab.engine.attentions.flash_attn import FlashAttnKernels, checked
from kvlab.engine.attentions.flashinfer import FlashInferKernels, pages
from kvlab.engine.attentions.gpu import KvlabGpu
from kvlab.engine.attentions.parts import alike, make_launch
from kvlab.engine.kernels import build_kernels
from kvlab.errors import UsageError
from kvlab.kernels.reference import attend as truth
from kvlab.memory import view
from kvlab.testing import RuleError
from kvlab.testing.kernels import judge


def test_adapters_attend_to_what_the_tables_say(adapter):
    kernels, block_sizes = adapter
    judge(kernels, block_sizes)


def test_and_in_bfloat16(adapter):
    kernels, block_sizes = adapter
    judge(kernels, block_sizes, seeds=2, dtype=torch.bfloat16, tolerance=0.03)


LENGTHS, NEW = [513, 40, 256, 1, 300, 40, 300], [1, 40, 1, 1, 17, 3, 0]


def _case(block_size, dtype):
    """A table, and keys and values of a store in which other layers' lie between; what nobody holds is NaN."""
    generator, stop_B = torch.Generator().manual_seed(0), np.array(LENGTHS)
    if block_size is None:
        table_BP = _starts(stop_B)
        slots = int(table_BP[:, 0].max() + stop_B[table_BP[:, 0].argmax()])  # the last row ends where the pool does
    else:
        count_B = -(-stop_B // block_size)
        free = np.random.default_rng(0).permutation(int(count_B.sum()) + 2)
        table_BP = np.full((len(stop_B), int(count_B.max()) + 1), -(2**31), np.int32)
        for row_P, count in zip(table_BP, count_B, strict=True):
            row_P[:count], free = free[:count], free[count:]
        slots = (int(count_B.sum()) + 2) * block_size
    store = torch.full((slots, 3, 2, 64), torch.nan, dtype=dtype)
    k_SHD, v_SHD = store[:, 0], store[:, 2]
    held = view.make_view(table_BP, np.zeros_like(stop_B), stop_B, block_size).slot_T
    for x_SHD in (k_SHD, v_SHD):
        x_SHD[held] = torch.randn(len(held), 2, 64, generator=generator).to(dtype)
    q_TQD = torch.randn(sum(NEW), 6, 64, generator=generator).to(dtype)
    return table_BP, stop_B - np.array(NEW), stop_B, q_TQD, k_SHD, v_SHD


def _starts(stop_B):
    """Rows in another order than the sequences', all starting at multiples of 32."""
    order = np.random.default_rng(1).permutation(len(stop_B))
    room_B = -(-stop_B[order] // 32) * 32
    start_B = np.empty_like(stop_B)
    start_B[order] = np.cumsum(room_B) - room_B
    return start_B[:, None].astype(np.int32)


def _error(kernels, block_size, dtype, device="cpu"):
    """Root mean square, relative to the truth's."""
    table_BP, start_B, stop_B, *tensors = _case(block_size, dtype)
    expected = truth(*tensors, view.make_view(table_BP, start_B, stop_B, block_size), 0.125)
    launch = kernels.make_view(table_BP, start_B, stop_B, block_size)
    o_TQD = kernels.attend(*(x.to(device) for x in tensors), launch, 0.125).cpu().double()
    return ((o_TQD - expected).square().mean() / expected.square().mean()).sqrt().item()


@pytest.mark.parametrize("block_size", [None, 256])
def test_pieces_of_long_sequences_in_a_sliced_store(adapter, block_size):
    assert _error(adapter[0], block_size, torch.float64) < 1e-12


def test_a_stand_in_that_sees_a_token_too_many_is_caught(documented):
    """The judge, not the stand-in's own checks, must find a wrong length."""

    def off_by_one(*arguments, seqused_k, **rest):
        return documented.flash2(*arguments, seqused_k=(seqused_k - 1).clamp(min=1), **rest)

    with pytest.raises(RuleError, match="attends to its own tokens"):
        judge(Flash2("cpu", off_by_one))


def test_rows_become_pages_as_large_as_the_places_where_they_start_allow():
    table_BP, _, stop_B, _, k_SHD, _ = _case(None, torch.float32)
    (part, *_) = make_launch(table_BP, stop_B - 1, stop_B, None, "cpu").parts
    slots = -(-len(k_SHD) // 32) * 32
    assert pages(part, None, slots).page_size in (32, 64, 128, 256)
    assert pages(part, None, slots + 1).page_size == 1
    found = pages(part, None, slots)
    assert len(found.page_N) == sum(-(-length // found.page_size) for length in LENGTHS)


def test_flashinfer_plans_once_a_launch_and_not_in_every_layer(documented):
    kernels = FlashInferKernels("cpu", documented.flashinfer, workspace_bytes=16)
    table_BP, start_B, stop_B, *tensors = _case(16, torch.float64)
    for launches in (1, 2):
        launch = kernels.make_view(table_BP, start_B, stop_B, 16)
        first, second = (kernels.attend(*tensors, launch, 0.125) for _ in range(2))
        assert torch.equal(first, second)
        assert (kernels.decode.plans, kernels.prefill.plans) == (launches, launches)


def test_sequences_with_as_many_new_tokens_share_a_call_of_flash_attn(documented):
    calls = []

    def counting(q, *arguments, **rest):
        calls.append(tuple(q.shape[:2]))
        return documented.with_kvcache(q, *arguments, **rest)

    _error(FlashAttnKernels("cpu", counting), None, torch.float64)
    assert calls == [(3, 1), (1, 3), (1, 17), (1, 40)]
    assert [len(group) for group in alike(np.array([1, 5, 0, 1, 5, 1]))] == [3, 2]


def test_flash_attn_says_which_blocks_it_takes(documented):
    kernels = FlashAttnKernels("cpu", documented.with_kvcache)
    with pytest.raises(UsageError, match="flash_attn with block_size=16: allowed are multiples of 256"):
        kernels.make_view(np.zeros((1, 1), np.int32), np.zeros(1, np.int64), np.ones(1, np.int64), 16)


def test_a_flash_attn_without_an_argument_that_is_passed_is_refused(documented):
    def older(q, k_cache, v_cache, cache_seqlens, cache_batch_idx, block_table, softmax_scale, causal): ...

    assert checked(documented.with_kvcache) is documented.with_kvcache
    with pytest.raises(UsageError, match="its flash_attn_with_kvcache has no cache_leftpad; allowed is"):
        checked(older)


def test_this_torch_has_the_operator_with_the_arguments_that_are_passed():
    assert operator() is torch.ops.aten._flash_attention_forward.default


@pytest.mark.parametrize(
    "arguments",
    [
        "Tensor query, Tensor key, Tensor value, *, float? scale=None, Tensor? seqused_k=None",
        ", ".join(f"Tensor {name}" for name in POSITIONS) + ", *, float? scale=None",
    ],
)
def test_another_torch_whose_operator_changed_is_refused_by_name(arguments):
    with pytest.raises(
        UsageError, match=rf"of torch {torch.__version__.split('+')[0]}.*takes query, .*not query, .*{KEYWORDS[1]}"
    ):
        operator(f"aten::_flash_attention_forward({arguments}) -> Tensor")


TARGETS = {
    "sdpa": ("sdpa.Sdpa", None),
    "flash_attn": ("flash_attn.FlashAttn", "flash_attn"),
    "flashinfer": ("flashinfer.FlashInfer", "flashinfer"),
}


@pytest.mark.gpu
@pytest.mark.parametrize("block_size", [None, 256])
@pytest.mark.parametrize("name", TARGETS)
def test_on_a_device(name, block_size):
    target, package = TARGETS[name]
    if package:
        pytest.importorskip(package)
    kernels = build_kernels({"_target_": f"kvlab.engine.attentions.{target}"}, "cuda")
    assert _error(kernels, block_size, torch.bfloat16, "cuda") < 6e-3


def test_our_kernels_behind_the_axis(device):
    """Under the interpreter where there is no device."""
    if device == "cuda":
        pytest.skip("judged natively")
    judge(KvlabGpu("cpu"), (None, 4), seeds=1, dtype=torch.float32, tolerance=1e-5)


@pytest.mark.gpu
def test_our_kernels_on_a_device():
    kernels = build_kernels({"_target_": "kvlab.engine.kernels.Kvlab"}, "cuda")
    for block_size in (None, 16):
        assert _error(kernels, block_size, torch.bfloat16, "cuda") < 6e-3
