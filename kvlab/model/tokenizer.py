"""Text to token ids and back, by the tokenizer and the chat template that a model brings along."""

from __future__ import annotations

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


def from_gguf(path: Path, metadata: Mapping[str, Any]) -> Tokenizer | None:
    """From the metadata of a GGUF file, None without one. UsageError: not SmolLM's kind, or damaged."""
    keys = ("model", "pre", "add_bos_token")
    kind = tuple(metadata.get(f"tokenizer.ggml.{key}") for key in keys)
    if kind[0] is None:
        return None
    if kind[:2] != ("gpt2", "smollm") or kind[2]:
        raise UsageError(f"{path}: tokenizer {keys} = {kind}; allowed is ('gpt2', 'smollm', False)")
    values = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    try:
        backend = _smollm(values["tokens"], values["token_type"], values["merges"])
        chat = {f"{name}_token": values["tokens"][values[f"{name}_token_id"]] for name in ("bos", "eos")}
    except Exception as error:  # tokenizers raises plain Exception
        raise UsageError(f"{path}: the tokenizer is damaged ({type(error).__name__}: {error})") from error
    chat["chat_template"] = metadata.get("tokenizer.chat_template", "")
    return Tokenizer(path, backend, [values["eos_token_id"]], chat)


def _smollm(tokens: list[str], types: list[int], merges: list[str]) -> Any:
    """Digits by themselves first, then words as GPT-2 splits them, then byte pairs."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    typed = list(zip(tokens, types, strict=True))
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in typed if k == CONTROL])
    backend.add_tokens([AddedToken(t, normalized=False) for t, k in typed if k == USER_DEFINED])
    return backend


def from_directory(folder: Path, eos_ids: Sequence[int], config: Mapping[str, Any]) -> Tokenizer | None:
    """From tokenizer.json of a checkpoint directory, None without one. UsageError: damaged.

    `config`: what tokenizer_config.json says, for chat.
    """
    from tokenizers import Tokenizer as Backend

    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise UsageError(f"{path}: not a readable tokenizer ({error})") from error
    chat = {"chat_template": _chat_template(folder / "chat_template.jinja", config)}
    for name in ("bos_token", "eos_token"):
        token = config.get(name)
        chat[name] = str(token.get("content", "") if isinstance(token, dict) else token or "")
    return Tokenizer(path, backend, eos_ids, chat)


def _chat_template(path: Path, config: Mapping[str, Any]) -> str:
    """The file's text, or what the configuration says; empty without either."""
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: not readable ({error})") from error
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        template = {item.get("name"): item.get("template") for item in template}.get("default")
    return template or ""
