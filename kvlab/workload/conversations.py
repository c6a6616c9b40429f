"""Conversations of several turns, as ShareGPT's JSON has them: each prompt is the history and the new message.

[{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}, ...]. An answer's length
is that of the file's answer, and the history holds the file's answers, whatever a run generated in their place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.errors import UsageError
from kvlab.workload.content import Text
from kvlab.workload.rows import Rows
from kvlab.workload.trace import decode, read_bytes

ASKING = ("human", "user", "system")
ANSWERING = ("gpt", "assistant", "chatgpt", "bing", "bard")
EXPECTED = (
    'a list of {"conversations": [{"from", "value"}, ...]}, from being one of '
    f"{', '.join(ASKING)}, {', '.join(ANSWERING)}"
)
Encode = Callable[[str], list[int]]


class Turn(NamedTuple):
    """Tokens of one conversation: those before an answer, and the answer's."""

    prompt: int
    output: int


def read(path: Path, tokenizer: str | None) -> Rows:
    """A row a turn, in the file's order. tokenizer: `smollm2`, a model's folder, or None: words are counted.

    Messages stand behind one another with nothing between them: no template, no names of speakers. UsageError.
    """
    data = read_bytes(path)
    encode, words = encoder(tokenizer)
    lengths, content, family, turns = list[Turn](), list[Text](), list[int](), list[int]()
    for number, conversation in enumerate(_conversations(path, decode(path, data)), start=1):
        tokens_N, found = _turns(_messages(path, number, conversation), encode)
        lengths += found
        content += [Text(tokens_N[: turn.prompt], tokenizer) for turn in found]
        family += [number] * len(found)
        turns += range(len(found))
    if not lengths:
        raise UsageError(f"{path}: no message is answered; expected {EXPECTED}")
    origin = {
        "synthetic": False,
        "source": path.name,
        "source_sha256": hashlib.sha256(data).hexdigest(),
        "tokens": words,
    }
    prompt, output = [turn.prompt for turn in lengths], [turn.output for turn in lengths]
    return Rows(prompt, output, origin, content=list(content), family=family, turn=turns)


def encoder(tokenizer: str | None) -> tuple[Encode, str]:
    """From text to token ids, and what the result says of it."""
    if tokenizer is None:
        return words, "words and punctuation marks, counted without a tokenizer"
    from kvlab.model.load import open_source

    source = open_source({"name": tokenizer} if tokenizer == "smollm2" else {"path": tokenizer})
    found = source.tokenizer
    if found is None:
        raise UsageError(f"workload.tokenizer={tokenizer}: has none; allowed is smollm2, a folder with one, or null")
    around = found.encode("")  # what the model wants around a text is left out: a message is a part of one

    def encode(text: str) -> list[int]:
        ids = found.encode(text)
        return ids[len(around) :] if ids[: len(around)] == around else ids

    return encode, f"tokenizer of {source.name}"


def words(text: str) -> list[int]:
    """A number for each word and each punctuation mark: the same for the same one on any machine."""
    return [
        int.from_bytes(hashlib.blake2b(word.encode(), digest_size=7).digest(), "big")
        for word in re.findall(r"\w+|[^\w\s]", text)
    ]


def _conversations(path: Path, text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: is no JSON ({error}); expected {EXPECTED}") from None
    if not isinstance(found, list):
        raise UsageError(f"{path}: holds {type(found).__name__}; expected {EXPECTED}")
    return found


def _messages(path: Path, number: int, conversation: Any) -> Iterator[tuple[bool, str]]:
    """(whether it is an answer, text) of each message."""
    messages = conversation.get("conversations") if isinstance(conversation, dict) else None
    if not isinstance(messages, list):
        raise UsageError(f"{path}, conversation {number}: has no list of messages; expected {EXPECTED}")
    for message in messages:
        speaker, text = (message.get(key) if isinstance(message, dict) else None for key in ("from", "value"))
        if speaker not in ASKING + ANSWERING or not isinstance(text, str):
            raise UsageError(f"{path}, conversation {number}: {str(message)[:80]!r}; expected {EXPECTED}")
        yield speaker in ANSWERING, text


def _turns(messages: Iterator[tuple[bool, str]], encode: Encode) -> tuple[NDArray[np.int64], list[Turn]]:
    """All tokens of a conversation, read-only, and its turns. What is empty, or answers nothing, is no turn."""
    tokens, turns = list[int](), list[Turn]()
    for answers, text in messages:
        new = encode(text)
        if answers and new and tokens:
            turns.append(Turn(len(tokens), len(new)))
        tokens += new
    tokens_N = np.array(tokens, np.int64)
    tokens_N.flags.writeable = False
    return tokens_N, turns
