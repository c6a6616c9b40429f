"""Random lives of page groups: taken, shared, cut back and given back in any order."""

from __future__ import annotations

import random

import pytest


@pytest.mark.parametrize("group_tokens", [4, 8, 2.5, 1.5, 1 / 3, 16, 13 / 3])
@pytest.mark.parametrize("tokens", [70, 160])
def test_random_lives(life, group_tokens, tokens):
    """Admissions, growth, forks, forks of forks, truncation into shared parts, and departures in any order."""
    seen = set()
    for seed in range(3):
        rng, one = random.Random(seed), life(tokens, group_tokens, max_len=40)
        for _ in range(60):
            seen.add(step(one, rng))
            one.check()
        for seq in rng.sample(sorted(one.stored), len(one.stored)):
            one.release(seq)
            one.check()
        assert one.strategy.usage().held == one.strategy.rooms_total == 0
        assert one.strategy.owners == {}
        assert one.strategy.surplus == {}
    assert seen >= {"admit", "refused", "write", "fork", "truncate", "release"}


def step(life, rng):
    live = sorted(life.stored)
    action = rng.choice(("admit", "write", "write", "write", "fork", "truncate", "release"))
    if action == "admit" or not live:
        length = rng.randint(1, min(30, life.strategy.longest))
        seq = life.admit(length, rng.randint(1, length))
        return "refused" if seq is None else "admit"
    seq = rng.choice(live)
    stored = len(life.stored[seq])
    if action == "write" or not stored:
        upto = min(stored + rng.choice((1, 1, 3, 9)), life.strategy.memory.max_len)
        return "write" if life.write(seq, upto) else "refused"
    if action == "fork":
        return "fork" if life.fork(seq, rng.choice((stored, rng.randint(1, stored)))) is not None else "refused"
    if action == "truncate":
        life.truncate(seq, rng.randint(1, stored))
    else:
        life.release(seq)
    return action
