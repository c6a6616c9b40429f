"""Text to token ids and back, by the tokenizer and the chat template that a model brings along."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvlab.errors import UsageError

CONTROL, USER_DEFINED = 3, 4  # token types of GGUF that are never split


class Tokenizer:
    """A model's tokenizer."""

    def __init__(self, path: Path, tokenizer: Any, eos_ids: Sequence[int], chat: Mapping[str, str]) -> None:
        """`chat`: the template under `chat_template`, and the special tokens it may name (`bos_token` ...)."""
        self.path, self._tokenizer, self._chat = path, tokenizer, chat
        self.eos_ids = frozenset(eos_ids)

    def encode(self, text: str) -> list[int]:
        """Token ids, with the special tokens that the model wants around a text, if it wants any."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def chat(self, prompt: str) -> list[int]:
        """Token ids of a conversation that opens with `prompt` and in which it is the model's turn.

        UsageError: the model has no chat template, or one that fails.
        """
        ids: list[int] = self._tokenizer.encode(self.chat_text(prompt), add_special_tokens=False).ids
        return ids

    def chat_text(self, prompt: str) -> str:
        """The text of that conversation."""
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if not self._chat.get("chat_template"):
            raise UsageError(f"{self.path}: the model has no chat template")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        messages = [{"role": "user", "content": prompt}]
        try:
            template = environment.from_string(self._chat["chat_template"])
            return template.render(self._chat, messages=messages, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            raise UsageError(f"{self.path}: the model's chat template fails ({error})") from error


def from_gguf(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """From the metadata of a GGUF file. UsageError: not SmolLM's kind of tokenizer, or damaged."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    key = "tokenizer.ggml."
    kind = (metadata.get(key + "model"), metadata.get(key + "pre"), bool(metadata.get(key + "add_bos_token")))
    if kind != ("gpt2", "smollm", False):
        raise UsageError(
            f"{path}: tokenizer (model, pre, add_bos_token) = {kind}; allowed is ('gpt2', 'smollm', False)"
        )
    try:
        tokens, types = metadata[key + "tokens"], metadata[key + "token_type"]
        merges = [tuple(merge.split(" ", 1)) for merge in metadata[key + "merges"]]
        bpe = models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
        eos = [metadata[key + "eos_token_id"]]
    except Exception as error:  # tokenizers raises plain Exception
        raise UsageError(f"{path}: the tokenizer is damaged ({type(error).__name__}: {error})") from error
    backend = Backend(bpe)
    # Digits by themselves first, then words as GPT-2 splits them.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    typed = list(zip(tokens, types, strict=True))
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in typed if k == CONTROL])
    backend.add_tokens([AddedToken(t, normalized=False) for t, k in typed if k == USER_DEFINED])
    chat = {"chat_template": metadata.get("tokenizer.chat_template", "")}
    for name in ("bos", "eos"):
        if (index := metadata.get(f"{key}{name}_token_id")) is not None:
            chat[f"{name}_token"] = tokens[index]
    return Tokenizer(path, backend, eos, chat)


def from_directory(folder: Path, eos_ids: Sequence[int]) -> Tokenizer | None:
    """From tokenizer.json of a checkpoint directory, None without one. UsageError: damaged."""
    from tokenizers import Tokenizer as Backend

    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise UsageError(f"{path}: not a readable tokenizer ({error})") from error
    return Tokenizer(path, backend, eos_ids, _chat(folder))


def _chat(folder: Path) -> dict[str, str]:
    """Chat template and special tokens from the files beside tokenizer.json."""
    path, jinja = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        template = jinja.read_text(encoding="utf-8") if jinja.exists() else config.get("chat_template")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not readable ({error})") from error
    if isinstance(template, list):  # several by name
        template = {item["name"]: item["template"] for item in template}.get("default")
    chat = {"chat_template": template or ""}
    for name in ("bos_token", "eos_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None:
            chat[name] = token
    return chat
