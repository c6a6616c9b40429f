"""vLLM on the CPU, compiled: continuous batching over its paged pool, prefix caching off."""

from __future__ import annotations

import os

from side import serve


def start(settings):
    # Its own reading of the machine would leave one of two cores to others.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{settings['threads'] - 1}"
    gibibytes = max(1, settings["pool_bytes"] >> 30)
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(gibibytes)
    import vllm

    engine = vllm.LLM(
        settings["model"], dtype="bfloat16", max_num_seqs=settings["max_seqs"], max_model_len=settings["max_len"],
        enable_prefix_caching=False, skip_tokenizer_init=True, disable_log_stats=True,
    )  # fmt: skip

    def generate(prompts, outputs):
        parameters = [
            vllm.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False) for n in outputs
        ]
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        done = engine.generate(asked, parameters, use_tqdm=False)
        return sum(len(one.outputs[0].token_ids) for one in done)

    return {"version": f"vLLM {vllm.__version__}", "pool_bytes": gibibytes << 30}, generate


if __name__ == "__main__":
    serve(start)
