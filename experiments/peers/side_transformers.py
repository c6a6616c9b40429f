"""transformers' generate over a static cache: one padded batch, which runs until its longest output is done."""

from __future__ import annotations

from side import serve


def start(settings):
    import torch
    import transformers

    torch.set_num_threads(settings["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=torch.bfloat16, attn_implementation="sdpa"
    ).eval()
    shape = model.config
    token_bytes = shape.num_hidden_layers * 2 * shape.num_key_value_heads * shape.head_dim * 2

    def generate(prompts, outputs):
        longest, most = max(map(len, prompts)), max(outputs)
        ids_BT = torch.tensor([[0] * (longest - len(ids)) + ids for ids in prompts])
        mask_BT = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
        with torch.inference_mode():
            model.generate(
                ids_BT, attention_mask=mask_BT, min_new_tokens=most, max_new_tokens=most, do_sample=False,
                cache_implementation="static", disable_compile=True, pad_token_id=0,
            )  # fmt: skip
        return sum(outputs)  # what comes behind a sequence's own output is of no use

    # Its cache is made for each batch and is as large as that: the largest here is max_seqs x (128 + 128) tokens.
    pool = settings["max_seqs"] * 256 * token_bytes
    return {"version": f"transformers {transformers.__version__}", "pool_bytes": pool}, generate


if __name__ == "__main__":
    serve(start)
