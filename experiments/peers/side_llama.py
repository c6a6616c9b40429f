"""llama.cpp through its batch interface: a step decodes a token of every sequence that is not done; KV in float16."""

from __future__ import annotations

from ctypes import POINTER, c_float, cast

from side import serve

BATCH = 2048  # tokens of one call, at most


class Sequences:
    """All requests at once, each in a part of the KV cache of its own."""

    def __init__(self, llama, context, vocab):
        self.llama, self.context, self.vocab = llama, context, vocab
        self.batch = llama.llama_batch_init(BATCH, 0, 1)
        self.memory = llama.llama_get_memory(context)

    def generate(self, prompts, outputs):
        self.llama.llama_memory_clear(self.memory, False)
        token, known = [0] * len(prompts), [len(ids) for ids in prompts]
        for group in self.groups(known):
            self.put([(seq, place, id) for seq in group for place, id in enumerate(prompts[seq])], known)
            for seq, id in zip(group, self.step(len(group)), strict=True):
                token[seq] = id
        left = dict(enumerate(outputs))
        total = 0
        while True:
            total += len(left)
            left = {seq: count - 1 for seq, count in left.items() if count > 1}
            if not left:
                return total
            self.put([(seq, known[seq], token[seq]) for seq in left], [place + 1 for place in known])
            for seq, id in zip(left, self.step(len(left)), strict=True):
                known[seq], token[seq] = known[seq] + 1, id

    def groups(self, lengths):
        """Sequences whose prompts go into one call together."""
        group, tokens = [], 0
        for seq, length in enumerate(lengths):
            if tokens + length > BATCH:
                yield group
                group, tokens = [], 0
            group.append(seq)
            tokens += length
        yield group

    def put(self, entries, stops):
        """(sequence, position, token) of this call; the last position of each sequence wants logits."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for index, (seq, place, id) in enumerate(entries):
            batch.token[index], batch.pos[index] = id, place
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, seq
            batch.logits[index] = place == stops[seq] - 1

    def step(self, rows):
        """The likeliest next token of each of the rows."""
        import numpy as np

        if self.llama.llama_decode(self.context, self.batch):
            raise RuntimeError("llama_decode failed")
        pointer = cast(self.llama.llama_get_logits(self.context), POINTER(c_float))
        return np.ctypeslib.as_array(pointer, (rows, self.vocab)).argmax(axis=1).tolist()


def start(settings):
    import llama_cpp as llama

    model = llama.llama_model_load_from_file(settings["model"].encode(), llama.llama_model_default_params())
    parameters = llama.llama_context_default_params()
    parameters.n_ctx, parameters.n_seq_max = settings["max_seqs"] * settings["max_len"], settings["max_seqs"]
    parameters.n_batch, parameters.n_ubatch = BATCH, 512
    parameters.n_threads = parameters.n_threads_batch = settings["threads"]
    context = llama.llama_init_from_model(model, parameters)
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    value_bytes = 2 * llama.llama_model_n_layer(model) * llama.llama_model_n_head_kv(model) * 2
    token_bytes = value_bytes * llama.llama_model_n_embd(model) // llama.llama_model_n_head(model)
    facts = {
        "version": f"llama.cpp (llama-cpp-python {llama.__version__})",
        "pool_bytes": llama.llama_n_ctx(context) * token_bytes,
    }
    return facts, Sequences(llama, context, vocab).generate


if __name__ == "__main__":
    serve(start)
