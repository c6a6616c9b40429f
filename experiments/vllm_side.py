"""Answers a trace with the decisions of vLLM's own KVCacheManager. Runs inside vLLM's environment, without kvlab.

JSON lines. A trace begins with {"blocks", "block_size", "caching", "max_len"}, answered by {"vllm": version} or
{"error": why}. Then a step a line: {"ids": {seq: tokens of sequences that are new}, "operations": [...]}, answered by
the decisions; vllm_trace.py describes both. Blocks are numbered as vLLM does, its null block 0 included.
"""

from __future__ import annotations

import inspect
import json
import os
import sys


class Manager:
    """One full-attention layer over `blocks` blocks, without a device."""

    def __init__(self, blocks: int, block_size: int, caching: bool, max_len: int) -> None:
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.float16)
        config = KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        settings = {"scheduler_block_size": block_size, "hash_block_size": block_size}
        known = inspect.signature(KVCacheManager).parameters  # older ones have fewer
        settings = {name: value for name, value in settings.items() if name in known}
        self.manager = KVCacheManager(config, max_model_len=max_len, enable_caching=caching, **settings)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(block_size, sha256) if caching else None
        self.ids: dict[int, list[int]] = {}
        self.requests: dict[int, object] = {}
        self.evicted: list[int] = []
        self.watch(self.manager.block_pool)

    def watch(self, pool) -> None:
        """Note the blocks that leave the cache: events would name hashes, and not which of two equal blocks."""
        evict = pool._maybe_evict_cached_block

        def noted(block):
            gone = evict(block)
            if gone:
                self.evicted.append(block.block_id)
            return gone

        pool._maybe_evict_cached_block = noted

    def __call__(self, operation):
        name, *numbers = operation
        self.evicted = []
        granted, hit, blocks = getattr(self, name)(*numbers)
        return granted, hit, self.manager.block_pool.get_num_free_blocks(), self.evicted, blocks

    def admit(self, seq, known, new):
        request = self.requests.get(seq) or self.request(seq, known)
        request.append_output_token_ids(self.ids[seq][request.num_tokens : known])
        found, hit, *_ = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, new, hit, found) is None:
            return 0, hit, []
        request.num_computed_tokens = hit + new
        return 1, hit, self.manager.get_block_ids(request.request_id)[0]

    def extend(self, seq, length, upto):
        request = self.requests[seq]
        request.append_output_token_ids(self.ids[seq][request.num_tokens : upto])
        request.num_computed_tokens = length
        blocks = self.manager.allocate_slots(request, upto - length)
        return (0, 0, []) if blocks is None else (1, 0, list(blocks.get_block_ids()[0]))

    def free(self, seq, *_):
        self.manager.free(self.requests.pop(seq))
        return 1, 0, []

    def preempt(self, seq, *_):
        """As vLLM's scheduler does: blocks go back, the request and its output stay."""
        request = self.requests[seq]
        self.manager.free(request)
        request.num_computed_tokens = 0
        return 1, 0, []

    def request(self, seq, known):
        from vllm import SamplingParams
        from vllm.v1.request import Request

        parameters = SamplingParams(max_tokens=len(self.ids[seq]))
        request = self.requests[seq] = Request(
            str(seq), self.ids[seq][:known], parameters, None, block_hasher=self.hasher
        )
        return request


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints is not an answer
    for message in map(json.loads, sys.stdin):
        if "blocks" in message:
            manager, answer = begin(message)
        else:
            manager.ids.update({int(seq): ids for seq, ids in message["ids"].items()})
            answer = [manager(operation) for operation in message["operations"]]
        print(json.dumps(answer), file=out)


def begin(settings):
    try:
        import vllm

        return Manager(**settings), {"vllm": vllm.__version__}
    except Exception as error:  # whatever an environment lacks, the other side says it in one line
        return None, {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
