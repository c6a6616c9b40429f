"""Known cache hit rates of Mooncake's conversation trace beside those of kvlab's own strategies.

    python experiments/mooncake_replay.py --path conversation_trace.jsonl.gz --out experiments/mooncake_replay

Bookkeeping alone: no model, no engine. One request at a time is admitted, told as written and released; answers are
not cached, and of a prompt the last blocks leave the cache first.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.errors import UsageError
from kvlab.strategies.cached_blocks import CachedBlocks
from kvlab.strategies.prefix import Prefix
from kvlab.strategies.radix import Radix
from kvlab.strategy import Arrival, Memory, ceil_div
from kvlab.workload.content import Segments
from kvlab.workload.jsonl import BLOCK, mooncake
from kvlab.workload.rows import Rows

POOLS = {"1k": 1_000, "3k": 3_000, "10k": 10_000, "30k": 30_000, "100k": 100_000}
KNOWN = {  # % to one decimal, of blocks; of input tokens where nothing is ever evicted
    "cacheable": {"1k": 4.5, "3k": 6.5, "10k": 21.2, "30k": 32.6, "100k": 36.4, "unlimited": 37.4},
    "full blocks only": {"1k": 4.5, "3k": 6.7, "10k": 21.5, "30k": 33.0, "100k": 36.4},
}
WITHIN = 0.1  # points
STRATEGIES: dict[str, Callable[[Memory], CachedBlocks]] = {
    "prefix": lambda memory: Prefix(memory, 1),
    "radix, by block": lambda memory: Radix(memory, 1, evict="block"),
    "radix, by leaf": lambda memory: Radix(memory, 1, evict="leaf"),
}
ANSWER = 2**31 - 1  # stands for the first token that follows a prompt, and equals no hash id
NOTES = f"""- known: worked out from the public file before, to one decimal. plain LRU: an ordered dictionary of hash
  ids, in this script, which knows nothing of kvlab.
- A token stands for a block of {BLOCK}: its id is the hash id, `block_size` is 1. With {BLOCK} token ids a block, as
  `workload=mooncake` makes them, the hits are the same (tests/experiments/test_mooncake_replay.py).
- The first token of the answer is asked for with the prompt, since a strategy always leaves one to compute. The pool
  has one block more for it, and it is never told as written.
- full blocks only: what the last block holds, if it is not full, is computed anew and not cached.
- unlimited: as many blocks as the trace has distinct ones; % of input tokens, a hit in a last block counting what is
  in it. The other columns are % of blocks, the last ones included.
- radix, by leaf evicts all that nobody uses of a leaf at once, more than is needed.
"""


class Hits(NamedTuple):
    """Shares in %."""

    of_blocks: float
    of_tokens: float


def prompts(rows: Rows, last: str) -> Iterator[tuple[NDArray[np.int64], int]]:
    """(hash ids of the blocks that can be cached, tokens) of each; last: `cacheable`, or `full blocks only` are."""
    for segments, length in zip(rows.content or [], rows.prompt, strict=True):
        assert isinstance(segments, Segments)
        yield segments.names[: ceil_div(length, BLOCK) if last == "cacheable" else length // BLOCK], length


def replay(rows: Rows, strategy: CachedBlocks, last: str) -> Hits:
    """The whole trace through a strategy."""
    found = []
    for seq, (names_N, _) in enumerate(prompts(rows, last)):
        ids = np.append(names_N, ANSWER).astype(np.int32)
        grant = strategy.admit(Arrival(seq, len(ids), len(ids), len(ids), len(ids), ids), len(ids))
        assert grant is not None, "one request alone fits"
        strategy.drain()
        strategy.wrote(seq, len(names_N), ids)
        strategy.release(seq)
        found.append(grant.hit)
    return hits(rows, found)


def plain(rows: Rows, blocks: int, last: str) -> Hits:
    """The same with nothing but a list of hash ids, the least recently used first."""
    cached, found = OrderedDict[int, None](), []
    for names_N, _ in prompts(rows, last):
        names = names_N.tolist()
        found.append(next((at for at, name in enumerate(names) if name not in cached), len(names)))
        for name in reversed(names):
            cached[name] = None
            cached.move_to_end(name)
        while len(cached) > blocks:
            cached.popitem(last=False)
    return hits(rows, found)


def hits(rows: Rows, found: list[int]) -> Hits:
    """found: leading blocks of each prompt that were cached."""
    blocks = sum(ceil_div(length, BLOCK) for length in rows.prompt)
    tokens = sum(min(count * BLOCK, length) for count, length in zip(found, rows.prompt, strict=True))
    return Hits(100 * sum(found) / blocks, 100 * tokens / sum(rows.prompt))


def memory(blocks: int, rows: Rows) -> Memory:
    longest = ceil_div(max(rows.prompt), BLOCK) + 1
    return Memory(blocks + 1, token_bytes=1, max_len=longest, max_seqs=1, chunk=longest)


def table(rows: Rows, strategies: Sequence[str]) -> list[dict[str, str]]:
    """A line for each strategy, kind of last block and pool."""
    names_N = np.concatenate([each.names for each in rows.content or [] if isinstance(each, Segments)])
    pools = {**POOLS, "unlimited": len(np.unique(names_N))}
    lines = []
    for last, known in KNOWN.items():
        for pool, blocks in pools.items():
            expected = plain(rows, blocks, last)
            for strategy in strategies:
                ours = replay(rows, STRATEGIES[strategy](memory(blocks, rows)), last)
                lines.append(_line(strategy, last, pool, ours, expected, known.get(pool)))
                print(" ".join(lines[-1].values()), flush=True)
    return sorted(lines, key=lambda line: strategies.index(line["strategy"]))


def _line(strategy: str, last: str, pool: str, ours: Hits, expected: Hits, known: float | None) -> dict[str, str]:
    share, plainly = (hits.of_tokens if pool == "unlimited" else hits.of_blocks for hits in (ours, expected))
    deviation = None if known is None else share - known
    return {
        "strategy": strategy,
        "last block": last,
        "pool, blocks": pool,
        "share of": "tokens" if pool == "unlimited" else "blocks",
        "known %": "" if known is None else f"{known:.1f}",
        "plain LRU %": f"{plainly:.2f}",
        "ours %": f"{share:.2f}",
        "deviation": "" if deviation is None else f"{deviation:+.2f}",
        "within 0.1": "" if deviation is None else "yes" if abs(deviation) <= WITHIN else "NO",
    }


def markdown(lines: list[dict[str, str]], rows: Rows, minutes: float) -> str:
    judged = [line["within 0.1"] == "yes" for line in lines if line["within 0.1"]]
    head = list(lines[0])
    body = [head, ["---"] * 4 + ["--:"] * 4 + ["---"], *(list(line.values()) for line in lines)]
    return "\n".join(
        [
            "# Mooncake's conversation trace: known hit rates and ours\n",
            f"{len(rows):,} requests, {sum(rows.prompt):,} input tokens, one request at a time, answers not cached,",
            f"LRU, the last blocks of a prompt evicted first. {sum(judged)} of {len(judged)} figures within {WITHIN} "
            "points of the known ones.\n",
            *(f"| {' | '.join(cells)} |" for cells in body),
            "",
            NOTES,
            f"Trace: `{rows.origin['source']}`, SHA-256 `{rows.origin['source_sha256']}`.",
            f"One core, {minutes:.1f} minutes.",
            "Command: `python experiments/mooncake_replay.py --path conversation_trace.jsonl.gz --out "
            "experiments/mooncake_replay`",
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, required=True, help="conversation_trace.jsonl, plain or gzipped")
    parser.add_argument("--out", type=Path, help="writes OUT.md and OUT.csv")
    parser.add_argument("--strategy", nargs="+", choices=list(STRATEGIES), default=list(STRATEGIES))
    given = parser.parse_args()
    began = time.perf_counter()
    try:
        rows = mooncake(given.path)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    lines = table(rows, given.strategy)
    text = markdown(lines, rows, (time.perf_counter() - began) / 60)
    if given.out:
        given.out.with_suffix(".md").write_text(text)
        with given.out.with_suffix(".csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    return 0 if all(line["within 0.1"] in ("", "yes") for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
