"""Lives: random requests, a random setting of every axis, a strategy of conf/strategy, and a pool that is tight.

The classes are those that the configuration names, so a strategy or an axis that is added to it is drawn here too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

import kvlab.conf
from kvlab.build import build
from kvlab.engine.sequence import Tokens
from kvlab.engine.speculation import Speculation
from kvlab.request import Request
from kvlab.strategy import Memory, Strategy

CONF = Path(kvlab.conf.__file__).parent
VOCAB = 50
PLENTY = 1000  # preemptions, more than any sequence needs
AXES = ("admission", "victim", "preemption", "forecast")
NEEDS_LENGTHS = ("pow2", "oracle")  # forecasts of requests whose output length a trace knows
# What is too large to matter in runs as short as these.
SMALLER: dict[str, dict[str, Any]] = {
    "growing_step": {"step": 8},
    "new_token_ratio": {"steps": 20, "headroom": 2},
    "past_future": {"least": 3},
    "quantile": {"least": 3},
    "watermark": {"share": 0.1},
    "cost_based": {"parameters": 10**8, "token_bytes": 48},
}


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@cache
def written(group: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    return found


def node(group: str, name: str, around: dict[str, Any]) -> dict[str, Any]:
    """What a file of the configuration says, with `around` in place of what it refers to."""
    told = {
        key: around.get(value, value) if isinstance(value, str) else value
        for key, value in written(group, name).items()
    }
    return {**told, **SMALLER.get(name, {})}


class Drafts(NamedTuple):
    """Of speculative decoding, a step: how many, and how probably the next one is right. Sequences draw by the seed."""

    tokens: int
    chance: float
    seed: int

    def by(self, tape: Tokens) -> Speculation | None:
        """tape: the tokens that are right."""
        return Speculation(*self, tape) if self.tokens else None


@dataclass(frozen=True)
class Life:
    """One run, ready to be run once."""

    name: str
    chosen: dict[str, str]  # of each axis
    strategy: Strategy
    requests: list[Request]
    options: dict[str, Any]  # of the scheduler
    drafts: Drafts

    def __str__(self) -> str:
        memory, settings = self.strategy.memory, {k: v for k, v in self.options.items() if k not in AXES}
        sizes = {
            "tokens": memory.bytes / memory.token_bytes, "max_len": memory.max_len, "max_seqs": memory.max_seqs,
            "chunk": memory.chunk, "page group": memory.page_group_bytes / memory.token_bytes,
            "host": memory.host_bytes / memory.token_bytes, "block": self.strategy.block_size,
            "longest": self.strategy.longest,
        }  # fmt: skip
        requests = [
            f"{r.id}: {r.prompt_len}+{r.output_len} of {r.limit} at {r.arrival_s:g} n={r.n} beams={r.beams} "
            f"priority={r.priority} space={r.space}"
            for r in self.requests
        ]
        return "\n".join([f"{self.name} {self.chosen}", f"{sizes}", f"{settings} {self.drafts}", *requests])


def draw(seed: int, families: float = 0.4) -> Life:
    """The life of this seed. families: the share of lives in which requests may have several sequences."""
    rng = Random(seed)
    name = rng.choice(names("strategy"))
    chosen = {axis: rng.choice(names(axis)) for axis in (*AXES, "eviction")}
    max_len = rng.choice((6, 12, 24, 40))
    chunk, budget = rng.choice((1, 3, 8, max_len, max_len)), rng.choice((None, None, 2, 5, 16))
    chunk = min(chunk, max_len)
    around = {
        "${engine.chunk}": chunk, "${engine.token_budget}": budget, "${block_size}": rng.choice((1, 2, 3, 4, 7)),
        "${eviction}": node("eviction", chosen["eviction"], {}),
    }  # fmt: skip
    built = pool(rng, node("strategy", name, around), max_len, chunk)
    eos = () if chosen["forecast"] in NEEDS_LENGTHS else rng.choice(((), (), (), (3, 11, 12)))
    options = {
        "token_budget": budget,
        "max_preemptions": rng.choice((0, 1, 3, PLENTY, PLENTY, PLENTY, PLENTY)),
        "wait_for_prefix": rng.random() < 0.8,
        "fork": rng.random() < 0.8,
        "queue": rng.choice(("arrival", "longest_prefix")),
        "length_penalty": rng.choice((0.0, 1.0, 1.0, 2.0)),
        "eos": eos,
    }
    axes = {axis: build(node(axis, chosen[axis], around)) for axis in AXES}
    requests = work(rng, built, bool(eos), rng.random() < families)
    drafts = Drafts(rng.choice((0, 0, 1, 2, 5)), rng.choice((0.0, 0.5, 0.9, 1.0)), rng.randrange(10))
    return Life(name, chosen, built, requests, options | axes, drafts)


def pool(rng: Random, strategy: dict[str, Any], max_len: int, chunk: int) -> Strategy:
    """A strategy over just what the longest request needs alone, or somewhat more."""
    token, sliced = 48, strategy.get("page_layout") == "sliced"
    longest, extra = rng.randint(2, max_len), rng.choice((0, 0, 1, 3, max_len // 2, max_len, 3 * max_len))
    memory = Memory(
        bytes=0, token_bytes=token, max_len=max_len, max_seqs=rng.choice((1, 2, 3, 8, 8, 16, 16)), chunk=chunk,
        page_group_bytes=int(rng.choice((1, 2.5, 4, 8)) * token), sliced=sliced,
        host_bytes=rng.choice((0, 5, 20, 1000)) * token,
    )  # fmt: skip
    for tokens in count(longest):
        if build(strategy, replace(memory, bytes=tokens * token)).longest >= longest:
            built: Strategy = build(strategy, replace(memory, bytes=(tokens + extra) * token))
            return built
    raise AssertionError("unreachable")


def work(rng: Random, strategy: Strategy, eos: bool, families: bool) -> list[Request]:
    """Requests of which a few are too long; many begin alike."""
    ids = np.random.default_rng(rng.randrange(2**32))
    common = ids.integers(0, VOCAB, (2, strategy.memory.max_len)).astype(np.int32)
    long = rng.random() < 0.6  # all as long as they may be: the pool is contended
    gap_s, urgent, spaces = rng.choice((0.0, 0.0, 0.7, 4.0)), rng.random() < 0.4, rng.choice((1, 1, 2))
    made, arrival_s = list[Request](), 0.0
    for index in range(rng.randint(1, 14)):
        most = min(strategy.longest + (rng.random() < 0.1), strategy.memory.max_len)
        limit = rng.randint(max(2, long * most), most)
        prompt_len = rng.randint(1, limit - 1)
        prompt = ids.integers(0, VOCAB, prompt_len).astype(np.int32)
        same = rng.randint(0, prompt_len)
        prompt[:same] = common[rng.randrange(2), :same]
        output = (
            None if eos and rng.random() < 0.7 else rng.randint(1 + long * (limit - prompt_len - 1), limit - prompt_len)
        )
        several = rng.choice(({}, {"n": rng.randint(2, 4)}, {"beams": rng.randint(1, 3)})) if families else {}
        made.append(
            Request(
                index,
                prompt_len,
                output,
                limit,
                arrival_s,
                prompt,
                **several,
                priority=rng.randrange(3) if urgent else 0,
                space=rng.randrange(spaces),
            )
        )
        arrival_s += gap_s * rng.random() * 2
    return made


@pytest.fixture
def life():
    """life(seed, families=0.4): one to run."""
    return draw


@pytest.fixture
def choices():
    """choices(group): what the configuration has of it."""
    return names
