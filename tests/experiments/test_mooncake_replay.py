"""The replay of Mooncake's trace: against a plain LRU, against the figures known of it, and with 512 ids a block."""

import importlib.util
import random
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from kvlab.strategies.prefix import Prefix
from kvlab.strategy import Arrival, Memory
from kvlab.workload.content import Segments, Words
from kvlab.workload.jsonl import BLOCK, mooncake
from kvlab.workload.rows import Rows

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("mooncake_replay", ROOT / "experiments/mooncake_replay.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def real(public_trace):
    return mooncake(public_trace("mooncake_fast25/conversation_trace.jsonl.gz"))


def tree(seed, requests=150):
    """Prompts that continue one another, as turns of conversations do; the last block is full or not."""
    rng, new = random.Random(seed), count(1)
    rows = [([0], BLOCK)]
    for _ in range(requests):
        before, length = rng.choice(rows[-20:])
        kept = before[: rng.randint(1, len(before))]
        grown = kept + [next(new) for _ in range(rng.randint(0, 4))]
        rows.append((grown, length if grown == before else len(grown) * BLOCK - rng.choice([0, 0, 100, 511])))
    content = [
        Segments(np.array(names), np.minimum(np.arange(1, len(names) + 1) * BLOCK, length)) for names, length in rows
    ]
    return Rows([length for _, length in rows], [1] * len(rows), {}, content=content)


@pytest.mark.parametrize("last", ["cacheable", "full blocks only"])
@pytest.mark.parametrize("strategy", ["prefix", "radix, by block"])
def test_strategies_hit_what_a_plain_list_hits(script, strategy, last):
    for seed in range(6):
        rows = tree(seed)
        for blocks in (25, 40, 60, 1000):
            made = script.STRATEGIES[strategy](script.memory(blocks, rows))
            assert script.replay(rows, made, last) == script.plain(rows, blocks, last), (seed, blocks)


def with_real_ids(rows, blocks, words):
    """`full blocks only` with 512 token ids for a block; the hits of each request, in blocks."""
    longest = max(rows.prompt)
    strategy = Prefix(Memory((blocks + 1) * BLOCK, 1, max_len=longest, max_seqs=1, chunk=longest), BLOCK)
    found = []
    for seq, (content, length) in enumerate(zip(rows.content, rows.prompt, strict=True)):
        ids = content.ids(words)
        grant = strategy.admit(Arrival(seq, length, length, length, length, ids), length)
        strategy.drain()
        strategy.wrote(seq, length, ids)
        strategy.release(seq)
        found.append(grant.hit // BLOCK)
    return found


def test_a_token_a_block_gives_what_512_token_ids_a_block_give(script):
    """A prompt that fills its last block has a token less to hit with 512 ids, since one is always left to compute."""
    for seed in range(3):
        rows = tree(seed, 60)
        rows = rows.pick([at for at in range(len(rows)) if rows.prompt[at] % BLOCK])
        for blocks in (25, 40, 1000):
            theirs = script.hits(rows, with_real_ids(rows, blocks, Words(seed, 49152)))
            ours = script.replay(rows, Prefix(script.memory(blocks, rows), 1), "full blocks only")
            assert theirs == ours


def test_a_part_of_the_real_trace_with_512_token_ids_a_block(script, real):
    part = real.pick([at for at in range(400) if real.prompt[at] % BLOCK])
    for blocks in (1000, 5000):
        theirs = script.hits(part, with_real_ids(part, blocks, Words(0, 49152)))
        ours = script.replay(part, Prefix(script.memory(blocks, part), 1), "full blocks only")
        assert theirs == ours
        assert theirs.of_blocks > 1


@pytest.mark.slow
def test_the_whole_trace_has_its_known_hit_rates(script, real):
    lines = script.table(real, ["prefix"])
    assert len(lines) == 12
    assert all(line["within 0.1"] in ("yes", "") for line in lines)
    assert [line["ours %"] for line in lines] == [line["plain LRU %"] for line in lines]
