"""A tutorial's numbers on PagedAttention, measured again: real strategies admit the sequences and are asked.

Nothing is computed by a formula where a strategy can be asked: slots are usage().held, blocks are entries of a
block table, and a capacity is how many sequences were admitted before one was refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvlab.reproduce.claims import Claim, Line, Measured, compare
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.paged import Paged
from kvlab.strategy import Arrival, Memory, Strategy
from kvlab.workload.lengths import lognormal_lengths

LAYERS = 24
TOKEN_BYTES = 2 * LAYERS * 2 * 64 * 2  # Qwen2.5-0.5B: keys and values, 2 key/value heads of 64, 16 bits
SEQUENCES, SEED, MU, SIGMA = 2000, 0, 5.5, 0.9
MAX_LEN, LONG_MAX_LEN, BLOCK = 4096, 32768, 16
RESERVATIONS = 246  # of MAX_LEN tokens, in the pool behind "requests at once"
Values = dict[str, Measured]  # by cell


class Article(NamedTuple):
    """The lines, and what is said beside them."""

    title: str
    setting: str
    comparison: str
    lines: list[Line]


def reproduce(only: Collection[str] = ()) -> Article:
    """Measure the figures named, or all. A name that is not in FIGURES raises KeyError."""
    data: dict[str, Any] = json.loads(Path(__file__).with_name("article.json").read_text())
    measured = {(figure, cell): value for figure in only or FIGURES for cell, value in FIGURES[figure]().items()}
    claims = [Claim(**claim) for claim in data["claims"] if not only or claim["figure"] in only]
    return Article(data["title"], data["setting"], data["comparison"], compare(claims, measured))


def workload() -> Values:
    lengths = _lengths(MAX_LEN)
    strategy = _filled(_paged(BLOCK, lengths, MAX_LEN), lengths)
    slots = np.concatenate([strategy.slots(seq, 0, 0, length) for seq, length in enumerate(lengths)])
    return {"tokens stored": Measured(len(np.unique(slots)), "different slots that the block tables give the tokens")}


def utilization() -> Values:
    lengths = _lengths(MAX_LEN)
    reserved, exact, paged = _reserved(MAX_LEN), _share(1, MAX_LEN), _slots(_blocks(BLOCK, MAX_LEN))
    held = "slots held by contiguous, all admitted"
    blocks = f"slots held by paged with block_size {BLOCK}, all admitted"
    return {
        "reserve-max, slots": Measured(reserved, held),
        "reserve-max": Measured(100 * sum(lengths) / reserved, f"tokens / {held}"),
        "exact": Measured(exact, "tokens / slots held by paged with block_size 1, all admitted"),
        "blocks of 16, slots": Measured(paged, blocks),
        "blocks of 16": Measured(100 * sum(lengths) / paged, f"tokens / {blocks}"),
        "blocks of 16, wasted in each sequence": Measured((paged - sum(lengths)) / SEQUENCES, f"{blocks}, less tokens"),
    }


def blocks() -> Values:
    how = "tokens / slots held by paged with block_size {}, all admitted"
    return {f"blocks of {size}": Measured(_share(size, MAX_LEN), how.format(size)) for size in (1, 8, 16, 32, 128)}


def context() -> Values:
    tokens, reserved = sum(_lengths(LONG_MAX_LEN)), _reserved(LONG_MAX_LEN)
    how = "the same draw, capped at 32,768 (it never reaches 4,096): tokens / slots held by {}"
    return {
        "reserve-max at max_len 32,768": Measured(100 * tokens / reserved, how.format("contiguous")),
        "blocks of 16 at max_len 32,768": Measured(_share(BLOCK, LONG_MAX_LEN), how.format("paged, block_size 16")),
    }


def lengths() -> Values:
    how = "slots held by paged with block_size 16 for one such sequence, less its tokens"
    wasted = {n: _slots(_filled(_paged(BLOCK, [n], MAX_LEN), [n])) - n for n in (100, 500, 2000)}
    return {f"wasted at {n:,} tokens": Measured(slots, how) for n, slots in wasted.items()}


def table() -> Values:
    slots = _filled(_paged(BLOCK, [35], MAX_LEN), [35]).slots(0, 0, 0, 35)
    third = slots[slots // BLOCK == 2]
    first_hundred, taken = _grow(100), _grow(100_000)
    second = next(length for length, held in enumerate(np.cumsum(first_hundred), 1) if held == 2)
    grown = "one sequence grown token by token in paged with block_size 16: {}"
    return {
        "token that takes the second block": Measured(second, grown.format("tokens when its table has two entries")),
        "35 tokens: first slot in block 2": Measured(
            int(third.min()), "slots that paged gives 35 tokens in a new pool"
        ),
        "35 tokens: last slot in block 2": Measured(int(third.max()), "slots that paged gives 35 tokens in a new pool"),
        "35 tokens: tokens in the listing": Measured(int(slots.max()) + 1, "slots up to the last one that is used"),
        "100,000 tokens: blocks": Measured(sum(taken), grown.format("entries of its table at the end")),
        "100,000 tokens: blocks taken at once, at most": Measured(max(taken), grown.format("new entries in any step")),
    }


def memory() -> Values:
    """A pool of RESERVATIONS x MAX_LEN slots, filled by each strategy until it refuses."""
    slots = RESERVATIONS * MAX_LEN
    drawn = _lengths(MAX_LEN)
    reserved = _admitted(Contiguous(_memory(slots, MAX_LEN, 10_000)), drawn)
    longer = _admitted(Contiguous(_memory(slots, 4 * MAX_LEN, 10_000)), drawn)
    paged = _admitted(Paged(_memory(slots, MAX_LEN, 10_000), BLOCK), drawn)
    one = _filled(_paged(BLOCK, [1], MAX_LEN), [1]).usage().held
    pool = f"a pool of {slots * TOKEN_BYTES / 1e9:.2f} GB ({RESERVATIONS} x {MAX_LEN:,} tokens x {TOKEN_BYTES:,} bytes)"
    return {
        "one block": Measured(one / 1024, "bytes held by paged for one token"),
        "requests at once, reserve-max": Measured(
            reserved, f"{pool}: sequences admitted by contiguous; {longer} if each reserves {4 * MAX_LEN:,} tokens"
        ),
        "requests at once, blocks of 16": Measured(
            paged, f"{pool}: sequences admitted by paged, the same lengths in order, again from the first at the end"
        ),
    }


FIGURES: dict[str, Callable[[], Values]] = {
    "workload": workload,
    "utilization": utilization,
    "blocks": blocks,
    "context": context,
    "lengths": lengths,
    "table": table,
    "memory": memory,
}


def _lengths(cap: int) -> list[int]:
    return lognormal_lengths(SEQUENCES, SEED, MU, SIGMA, cap)


def _memory(slots: int, max_len: int, max_seqs: int) -> Memory:
    return Memory(slots * TOKEN_BYTES, TOKEN_BYTES, max_len, max_seqs, max_len, (None,) * LAYERS)


def _paged(block_size: int, lengths: list[int], max_len: int) -> Paged:
    """A pool with room for all the sequences; what they hold does not depend on how much is left over."""
    return Paged(_memory(sum(lengths) + len(lengths) * block_size, max_len, len(lengths)), block_size)


def _filled(strategy: Strategy, lengths: Iterable[int]) -> Strategy:
    """The strategy with every sequence admitted at its final length."""
    for seq, length in enumerate(lengths):
        granted = _admit(strategy, seq, length)
        assert granted, f"sequence {seq} of {length} tokens was refused"
    return strategy


def _admit(strategy: Strategy, seq: int, length: int) -> bool:
    limit = strategy.memory.max_len
    return strategy.admit(Arrival(seq, length, length, limit, limit), length) is not None


def _admitted(strategy: Strategy, lengths: list[int]) -> int:
    """Sequences until the first that is refused; the lengths start again when they run out."""
    return next(seq for seq, length in zip(count(), cycle(lengths), strict=False) if not _admit(strategy, seq, length))


def _blocks(block_size: int, max_len: int) -> Strategy:
    return _filled(_paged(block_size, _lengths(max_len), max_len), _lengths(max_len))


def _share(block_size: int, max_len: int) -> float:
    """Percent of the slots held that hold a token."""
    return 100 * sum(_lengths(max_len)) / _slots(_blocks(block_size, max_len))


def _reserved(max_len: int) -> int:
    return _slots(_filled(Contiguous(_memory(SEQUENCES * max_len, max_len, SEQUENCES)), _lengths(max_len)))


def _slots(strategy: Strategy) -> int:
    return strategy.usage().held // TOKEN_BYTES


def _grow(length: int) -> list[int]:
    """Blocks that each of the first `length` tokens of one sequence took."""
    strategy = _filled(_paged(BLOCK, [length], length), [1])
    held = [len(strategy.table[0])]
    for stored in range(1, length):
        assert strategy.extend(0, stored, stored + 1), f"token {stored + 1} was refused"
        held.append(len(strategy.table[0]))
    return np.diff(held, prepend=0).tolist()
