"""What vLLM's KVCacheManager costs on a trace. Runs inside vLLM's environment, without kvlab.

JSON lines; the first is answered by vLLM's version. {"caching", "block_size", "blocks", "running", "max_len",
"prompt": [tokens, ...], "output": [tokens, ...]} is answered by nanoseconds of CPU time: of the manager's own calls,
and of making requests and appending tokens to them, which is where vLLM hashes. Requests wait in order, `running` at
most are admitted, nothing is computed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import deque
from time import thread_time_ns

VOCAB = 32_000


class Run:
    """One trace through a new manager of one full-attention layer."""

    def __init__(self, caching, block_size, blocks, running, max_len, prompt, output):
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        self.manager = make_manager(caching, block_size, blocks, max_len)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(block_size, sha256) if caching else None
        self.blocks, self.running, self.ahead = blocks, running, deque(zip(prompt, output, strict=True))
        self.random, self.live, self.made = random.Random(1), [], 0
        self.ns = dict.fromkeys(("grow", "admit", "free", "make", "append"), 0)
        self.steps = self.tokens = self.most_blocks = 0

    def to_end(self):
        while self.ahead or self.live:
            self.timed("grow", self.grow)
            fresh = self.timed("make", self.make)
            self.timed("admit", lambda fresh=fresh: self.admit(fresh))
            used = self.blocks - 1 - self.manager.block_pool.get_num_free_blocks()
            self.live += fresh
            self.timed("append", self.append)
            self.timed("free", self.free)
            self.steps, self.most_blocks = self.steps + 1, max(self.most_blocks, used)
        return {
            "steps": self.steps, "output_tokens": self.tokens, "most_blocks": self.most_blocks,
            "manager_ns": self.ns["grow"] + self.ns["admit"] + self.ns["free"],
            "request_ns": self.ns["make"] + self.ns["append"], "parts_ns": self.ns,
        }  # fmt: skip

    def timed(self, name, part):
        begin = thread_time_ns()
        result = part()
        self.ns[name] += thread_time_ns() - begin
        return result

    def grow(self):
        for request in self.live:
            assert self.manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1

    def make(self):
        from vllm import SamplingParams
        from vllm.v1.request import Request

        fresh = []
        while self.ahead and len(self.live) + len(fresh) < self.running:
            prompt, output = self.ahead.popleft()
            ids = self.random.choices(range(VOCAB), k=prompt)
            parameters = SamplingParams(max_tokens=output)
            fresh.append(Request(str(self.made), ids, parameters, None, block_hasher=self.hasher))
            self.made += 1
        return fresh

    def admit(self, fresh):
        for request in fresh:
            found, hit, *_ = self.manager.get_computed_blocks(request)
            assert self.manager.allocate_slots(request, request.num_tokens - hit, hit, found) is not None
            request.num_computed_tokens = request.num_tokens

    def append(self):
        for request in self.live:
            request.append_output_token_ids(self.tokens % VOCAB)
            self.tokens += 1

    def free(self):
        stay = []
        for request in self.live:
            if request.num_output_tokens < request.max_tokens:
                stay.append(request)
            else:
                self.manager.free(request)
        self.live = stay


def make_manager(caching, block_size, blocks, max_len):
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.float16)
    config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    sizes = {"scheduler_block_size": block_size, "hash_block_size": block_size}
    return KVCacheManager(config, max_model_len=max_len, enable_caching=caching, **sizes)


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints is not an answer
    import vllm

    sys.stdin.readline()
    print(json.dumps({"vllm": vllm.__version__}), file=out)
    for line in sys.stdin:
        print(json.dumps(Run(**json.loads(line)).to_end()), file=out)


if __name__ == "__main__":
    main()
