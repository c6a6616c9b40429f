"""Stand-ins for other people's kernels: the documented meaning of one call each, in plain torch, with its checks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvlab.engine.attentions.flash2 import Flash2
from kvlab.engine.attentions.flash_attn import FlashAttnKernels
from kvlab.engine.attentions.flashinfer import FlashInferKernels


def dense(q_NQD, k_NHD, v_NHD, scale, causal):
    """One sequence. The last query sees all keys, the one before it all but the last, and so on."""
    groups = q_NQD.shape[1] // k_NHD.shape[1]
    k, v = (x.repeat_interleave(groups, 1).double().transpose(0, 1) for x in (k_NHD, v_NHD))
    weight = q_NQD.double().transpose(0, 1) @ k.transpose(1, 2) * scale
    if causal:
        seen = torch.ones(weight.shape[1:], dtype=torch.bool).tril(weight.shape[2] - weight.shape[1])
        weight = weight.masked_fill(~seen, -torch.inf)
    return (weight.softmax(-1) @ v).transpose(0, 1).to(q_NQD.dtype)


def whole_numbers(*tensors):
    for x in tensors:
        assert x.dtype == torch.int32
        assert x.is_contiguous()


def flash2(
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale, seqused_k
):
    """aten._flash_attention_forward with packed sequences: of cum_seq_k only the places are read."""
    whole_numbers(cum_seq_q, cum_seq_k, seqused_k)
    assert (dropout_p, return_debug_mask) == (0.0, False)
    assert len(cum_seq_q) == len(cum_seq_k) == len(seqused_k) + 1
    assert cum_seq_q[-1] == len(query)
    assert max_q >= cum_seq_q.diff().max()
    assert max_k >= seqused_k.max()
    assert is_causal or max_q == 1
    parts = []
    for b, used in enumerate(seqused_k.tolist()):
        keys = slice(cum_seq_k[b], cum_seq_k[b] + used)
        parts.append(dense(query[cum_seq_q[b] : cum_seq_q[b + 1]], key[keys], value[keys], scale, is_causal))
    return torch.cat(parts), None, None, None, None


def with_kvcache(
    q, k_cache, v_cache, *, cache_seqlens, cache_batch_idx=None, cache_leftpad=None, block_table=None,
    softmax_scale, causal,
):  # fmt: skip
    """flash_attn.flash_attn_with_kvcache without new keys."""
    assert q.dim() == k_cache.dim() == 4
    assert k_cache.shape == v_cache.shape
    assert q.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1
    parts = []
    for b in range(len(q)):
        whole_numbers(cache_seqlens)
        if block_table is not None:
            whole_numbers(block_table)
            assert cache_batch_idx is None
            assert k_cache.shape[1] % 256 == 0
            blocks = block_table[b, : -(-int(cache_seqlens[b]) // k_cache.shape[1])].long()
            k, v = (x[blocks].flatten(0, 1)[: cache_seqlens[b]] for x in (k_cache, v_cache))
        else:
            whole_numbers(cache_batch_idx, cache_leftpad)
            k, v = (x[cache_batch_idx[b]][cache_leftpad[b] : cache_seqlens[b]] for x in (k_cache, v_cache))
        parts.append(dense(q[b], k, v, softmax_scale, causal))
    return torch.stack(parts)


class Wrapper:
    """What both wrappers of flashinfer have in common: sequences as pages in CSR form."""

    def __init__(self, workspace, *, kv_layout, backend, use_tensor_cores=True):
        assert workspace.dtype == torch.uint8
        assert (kv_layout, backend) == ("NHD", "fa2")
        self.plans = 0

    def _plan(self, query_C, first_C, page_N, last_B, q_heads, kv_heads, head_dim, page_size, types, scale, causal):
        whole_numbers(query_C, first_C, page_N, last_B)
        assert len(first_C) == len(last_B) + 1 == len(query_C)
        assert first_C[-1] == len(page_N)
        assert ((last_B >= 1) & (last_B <= page_size)).all()
        self.planned = (query_C, first_C, page_N.long(), last_B, page_size, scale, causal)
        self.shape = (q_heads, kv_heads, head_dim, *types)
        self.plans += 1

    def run(self, q, cache):
        query_C, first_C, page_N, last_B, page_size, scale, causal = self.planned
        k_cache, v_cache = cache
        assert (*q.shape[1:2], *k_cache.shape[2:], q.dtype, k_cache.dtype) == self.shape
        assert k_cache.shape[1] == page_size
        parts = []
        for b, last in enumerate(last_B.tolist()):
            mine = page_N[first_C[b] : first_C[b + 1]]
            length = (len(mine) - 1) * page_size + last
            k, v = (x[mine].flatten(0, 1)[:length] for x in (k_cache, v_cache))
            parts.append(dense(q[query_C[b] : query_C[b + 1]], k, v, scale, causal))
        return torch.cat(parts)


class FlashInferPackage:
    class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
        def plan(
            self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
            *, q_data_type, kv_data_type, sm_scale,
        ):  # fmt: skip
            shape = (num_qo_heads, num_kv_heads, head_dim, page_size)
            each = torch.arange(len(indptr), dtype=torch.int32)
            self._plan(each, indptr, indices, last_page_len, *shape, (q_data_type, kv_data_type), sm_scale, False)

    class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
        def plan(
            self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
            head_dim_qk, page_size, *, causal, q_data_type, kv_data_type, sm_scale,
        ):  # fmt: skip
            shape = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
            types = (q_data_type, kv_data_type)
            places = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
            self._plan(*places, *shape, types, sm_scale, causal)


STAND_INS = {
    "sdpa": (lambda: Flash2("cpu", flash2), (None, 1, 4, 16)),
    "flash_attn": (lambda: FlashAttnKernels("cpu", with_kvcache), (None, 256)),
    "flashinfer": (lambda: FlashInferKernels("cpu", FlashInferPackage, workspace_bytes=16), (None, 1, 3, 16)),
}


@pytest.fixture(scope="session")
def documented():
    """Of each package the call that an adapter makes."""
    return SimpleNamespace(flash2=flash2, with_kvcache=with_kvcache, flashinfer=FlashInferPackage)


@pytest.fixture(params=STAND_INS)
def adapter(request):
    make, block_sizes = STAND_INS[request.param]
    return make(), block_sizes
