"""Prompts whose tokens a file decides: named stretches that other prompts may have too, or the words of a text.

A trace with hash ids says which stretches are equal, not what they are: each name stands for tokens drawn from
(seed, name), so that equal names are equal tokens wherever they occur.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvlab.errors import UsageError

SEGMENT, NUMERALS = 5 << 40, 6 << 40  # stand where a request's id does when tokens are drawn, and are none
NAMES = 1 << 63  # names lie below
KEPT = 1 << 22  # tokens of stretches that stay drawn for the next prompt


class Content(Protocol):
    """What one prompt says."""

    def scaled(self, scale: float) -> Content: ...

    def ids(self, words: Words) -> NDArray[np.int32]:
        """Token ids, read-only."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Named stretches, one after another."""

    names: NDArray[np.int64]
    ends: NDArray[np.int64]  # tokens of the prompt up to the end of each

    def scaled(self, scale: float) -> Segments:
        """Prompts that began alike still do: where a stretch ends depends on what is before it alone."""
        ends = np.maximum((self.ends * scale).round(), 1).astype(np.int64)
        return replace(self, ends=ends)

    def ids(self, words: Words) -> NDArray[np.int32]:
        lengths = np.diff(self.ends, prepend=0).tolist()
        found = np.concatenate([words.of(*pair) for pair in zip(self.names.tolist(), lengths, strict=True)])
        found.flags.writeable = False
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """Tokens of a text: ids of its tokenizer's vocabulary, or numbers of words, which any vocabulary has room for."""

    tokens: NDArray[np.int64]  # read-only; the turns of a conversation are views of one array
    tokenizer: str | None  # None: words

    def scaled(self, scale: float) -> Text:
        raise UsageError(f"workload.scale={scale:g}: allowed is 1 where the file's own words are the prompt")

    def ids(self, words: Words) -> NDArray[np.int32]:
        if self.tokenizer and self.tokens.max() >= words.vocab:
            raise UsageError(
                f"workload.tokenizer={self.tokenizer}: has token id {self.tokens.max()}; the model's vocabulary ends "
                f"at {words.vocab}: allowed is the model's own tokenizer, or null"
            )
        found = (self.tokens % words.vocab).astype(np.int32)
        found.flags.writeable = False
        return found


class Words:
    """The tokens that a name stands for, in a vocabulary; of those drawn last some are kept."""

    def __init__(self, seed: int, vocab: int) -> None:
        self.seed, self.vocab = seed, vocab
        self.digits = ceil(63 / log2(vocab)) if vocab > 1 else 0
        self.offset_D = _drawn(self.digits, vocab, seed, NUMERALS)
        self.kept: OrderedDict[int, NDArray[np.int32]] = OrderedDict()
        self.tokens = 0

    def of(self, name: int, length: int) -> NDArray[np.int32]:
        """The first `length` tokens of a name; fewer are the beginning of more."""
        known = self.kept.pop(name, None)
        self.tokens -= 0 if known is None else len(known)
        if known is None or len(known) < length:
            known = self.spelled(name, length)
        self.kept[name] = known
        self.tokens += len(known)
        while self.tokens > KEPT and len(self.kept) > 1:
            self.tokens -= len(self.kept.popitem(last=False)[1])
        return known[:length]

    def spelled(self, name: int, length: int) -> NDArray[np.int32]:
        """The name itself comes first, digit by digit: no two names have the same tokens, if there is room for it."""
        ids = _drawn(length, self.vocab, self.seed, SEGMENT, name)
        for at in range(min(self.digits, length)):
            name, digit = divmod(name, self.vocab)
            ids[at] = (digit + int(self.offset_D[at])) % self.vocab
        ids.flags.writeable = False
        return ids


def _drawn(length: int, vocab: int, *entropy: int) -> NDArray[np.int32]:
    raw = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(length)
    return (raw % np.uint64(vocab)).astype(np.int32)
