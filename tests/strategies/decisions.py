"""Run by a test in processes of their own: what a strategy decides in a small pool, on standard output."""

from __future__ import annotations

import random
import sys

import numpy as np

from kvlab.eviction import LFU
from kvlab.strategies.prefix import Prefix
from kvlab.strategies.radix import Radix
from kvlab.strategy import Arrival, Memory

memory, rng = Memory(bytes=64, token_bytes=1, max_len=64, max_seqs=8, chunk=64), random.Random(0)
strategy = Prefix(memory, 4) if sys.argv[1] == "prefix" else Radix(memory, 4, LFU(), "block", "copy")
for seq in range(60):
    ids = np.array(rng.choices((1, 2), k=rng.randint(5, 20)), np.int32)
    grant = strategy.admit(Arrival(seq, len(ids), len(ids), 64, 64, ids, space=seq % 2), len(ids))
    assert grant is not None
    print("hit", grant.hit, strategy.table[seq].tolist(), strategy.drain(), dict(strategy.counts))
    strategy.wrote(seq, len(ids), ids)
    strategy.release(seq)
