"""SmolLM2's tokenizer, built from the GGUF's metadata, against transformers and against the published rules."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex

from kvlab.errors import UsageError
from kvlab.model.gguf_header import read_header
from kvlab.model.tokenizer import Tokenizer, from_gguf

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces,\ttab\n\n\nlines  \n ",
    "In 2024, 1234567890 x 3.14159 = 42%",
    "1 22 333 a1b2c3 v1.2.3-rc4",
    "It's we'll they'd I'M DON'T",
    "naïve Zürich — “quotes” … ﬁ e\u0301",
    "日本語のテキスト 한국어 русский עברית العربية",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 \U0001f9ff",
    "def f(x):\n    return x ** 2  # comment\n",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><repo_name>x<empty_output>",
    "<|im_start|", "<|im_end|>1<|im_end|> 1", "\x00\x01\x7f\ufffd", "a" * 500,
]  # fmt: skip
NUMERALS = ["½ cup", "x² + y³", "٣٤٥ и Ⅻ", "①②③", "१२३ 一二三"]  # digits beyond 0-9


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    found = from_gguf(smollm2, read_header(smollm2).metadata)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def theirs(smollm2: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)


def test_equals_transformers(tokenizer: Tokenizer, theirs: Any) -> None:
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text


def test_chat_equals_transformers(tokenizer: Tokenizer, theirs: Any) -> None:
    for prompt in TEXTS:
        messages = [{"role": "user", "content": prompt}]
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True)
        assert tokenizer.chat(prompt) == expected["input_ids"], prompt


def test_equals_the_published_rules(tokenizer: Tokenizer, smollm2: Path) -> None:
    """Every numeral by itself, then GPT-2's words, then merges by rank.

    transformers leaves the first step out when it reads a GGUF file, which shows in numerals beyond 0-9.
    """
    metadata = read_header(smollm2).metadata
    for text in [*TEXTS[:11], *NUMERALS]:
        assert tokenizer.encode(text) == by_the_rules(text, metadata), text


def test_decode_gives_the_text_back(tokenizer: Tokenizer) -> None:
    for text in [*TEXTS[:11], *NUMERALS]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_end_of_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_end|>") == [2]
    assert tokenizer.eos_ids == {2}


@pytest.mark.parametrize(
    "change",
    [{"pre": "llama-bpe"}, {"model": "llama"}, {"add_bos_token": True}, {"tokens": ["a"]}, {"merges": ["q q"]},
     {"eos_token_id": 10**6}, {"token_type": None}],
)  # fmt: skip
def test_other_and_damaged_tokenizers_are_refused(change: dict[str, Any]) -> None:
    key = "tokenizer.ggml."
    good = {"model": "gpt2", "pre": "smollm", "tokens": ["a", "b", "ab"], "token_type": [1, 1, 1]}
    good |= {"merges": ["a b"], "bos_token_id": 0, "eos_token_id": 1}
    found = from_gguf(Path("x.gguf"), {key + name: value for name, value in good.items()})
    assert found is not None
    assert found.encode("abb") == [2, 1]
    with pytest.raises(UsageError, match="tokenizer"):
        from_gguf(Path("x.gguf"), {key + name: value for name, value in (good | change).items()})


def by_the_rules(text: str, metadata: dict[str, Any]) -> list[int]:
    """Byte-pair encoding, as slow and plain as its description."""
    ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    words = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    found = []
    for stretch in regex.findall(r"\p{N}|\P{N}+", text):
        for word in regex.findall(words, stretch):
            found += [ids[token] for token in merged([BYTES[byte] for byte in word.encode()], ranks)]
    return found


def merged(tokens: list[str], ranks: dict[tuple[str, ...], int]) -> list[str]:
    while True:
        pairs = [(ranks[pair], at) for at, pair in enumerate(pairwise(tokens)) if pair in ranks]
        if not pairs:
            return tokens
        at = min(pairs)[1]
        tokens = [*tokens[:at], tokens[at] + tokens[at + 1], *tokens[at + 2 :]]


def _bytes() -> dict[int, str]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others come after 255."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + at) for at, byte in enumerate(moved)}


BYTES = _bytes()
