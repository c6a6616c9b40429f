"""A memory in which every slot remembers the whole prefix behind the token it holds.

Whatever a strategy does, each live token must be where its table says, with the right prefix: so these tests
check strategies and scheduler together, without a model.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import fields
from math import gcd
from types import SimpleNamespace

import numpy as np
import pytest

from kvlab.engine.axes import Limit, Newest, PromptPlusOne
from kvlab.engine.clock import StepClock
from kvlab.engine.engine import Engine
from kvlab.engine.lanes import Lanes
from kvlab.engine.launch import Launch
from kvlab.engine.scheduler import Scheduler
from kvlab.engine.sequence import BRANCH_BITS
from kvlab.engine.settings import Settings
from kvlab.eviction import LFU
from kvlab.record.recorder import Recorder
from kvlab.request import Request
from kvlab.strategies.contiguous import Contiguous
from kvlab.strategies.paged import Paged
from kvlab.strategies.prefix import Prefix
from kvlab.strategies.radix import Radix
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Copy, Drop, Map, Memory, Strategy, SwapIn, SwapOut, Unmap

VOCAB = 50


class ShadowMemory:
    """Contents by slot, or by piece of a page group where slots are virtual (a token may straddle two groups)."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.memory = strategy, strategy.memory
        self.contents: dict[tuple[int, int], str] = {}
        self.mapping: dict[int, int] = {}
        self.ever: set[int] = set()
        self.host: dict[int, str] = {}

    def places(self, slot: int) -> list[tuple[int, int]]:
        if not self.strategy.virtual:
            return [(0, slot)]
        token, group = self.memory.token_bytes, self.memory.page_group_bytes
        piece = gcd(token, group)
        bytes_at = range(slot * token, (slot + 1) * token, piece)
        return [(self.mapping[at // group], at % group) for at in bytes_at]

    def write(self, slot: int, value: str) -> None:
        for place in self.places(slot):
            self.contents[place] = value

    def read(self, slot: int) -> str:
        found = {self.contents.get(place, "nothing") for place in self.places(slot)}
        return found.pop() if len(found) == 1 else "torn"

    def apply(self, moves: list) -> None:
        for move in moves:
            match move:
                case Map(virtual, physical, _):
                    assert virtual not in self.mapping
                    assert 0 <= physical < self.memory.bytes // self.memory.page_group_bytes
                    self.mapping[virtual] = physical
                    self.ever.add(physical)
                case Unmap(virtual, _):
                    del self.mapping[virtual]
                case Copy(source, target, tokens, _):
                    for i in range(tokens):
                        self.write(target + i, self.read(source + i))
                case SwapOut(source, host, tokens, _):
                    for i in range(tokens):
                        self.host[host + i] = self.read(source + i)
                    assert host + tokens <= self.memory.host_bytes // self.memory.token_bytes
                case SwapIn(host, target, tokens, _):
                    for i in range(tokens):
                        self.write(target + i, self.host[host + i])
                case Drop(physical, _):
                    assert physical not in self.mapping.values()
                    self.contents = {place: was for place, was in self.contents.items() if place[0] != physical}


def chain(ids: np.ndarray, space: int = 0) -> list[str]:
    """For each token: a hash of it and everything before it, other ones in every space."""
    state, out = hashlib.sha1(b"" if not space else b"%d:" % space), []
    for token in ids.tolist():
        state.update(token.to_bytes(4, "little"))
        out.append(state.hexdigest())
    return out


class ShadowExecutor:
    """Writes and reads every token through the tables; the next token is a function of the whole prefix read."""

    def __init__(self, strategy: Strategy, lanes: Lanes) -> None:
        self.strategy, self.lanes, self.memory = strategy, lanes, ShadowMemory(strategy)
        self.computed = 0  # tokens, each time

    def run(self, moves: list, launch: Launch) -> np.ndarray:
        self.computed += int((launch.stop_B - launch.start_B).sum())
        self.memory.apply(moves)
        ends, owners = [], Counter()
        stops = dict(zip(launch.lane_B.tolist(), launch.stop_B.tolist(), strict=True))
        for lane in self.lanes.order.tolist():
            live = self.strategy.slots(int(self.lanes.id[lane]), 0, 0, stops.get(lane, int(self.lanes.stored[lane])))
            owners.update(place for slot in live.tolist() for place in self.memory.places(slot))
        for b, lane in enumerate(launch.lane_B.tolist()):
            seq, start, stop = int(self.lanes.id[lane]), int(launch.start_B[b]), int(launch.stop_B[b])
            assert stop <= self.lanes.room[lane]
            links = chain(self.lanes.ids[lane, :stop], self.lanes.at(lane).request.space)
            slots = self.strategy.slots(seq, 0, 0, stop).tolist()
            assert len(set(slots)) == len(slots)
            written = [place for slot in slots[start:] for place in self.memory.places(slot)]
            assert all(owners[place] == 1 for place in written), "two sequences write a slot, or one reads it"
            for position in range(start, stop):
                self.memory.write(slots[position], links[position])
            assert [self.memory.read(slot) for slot in slots] == links
            ends.append(links)
        self.memory.apply(launch.beside)
        if self.strategy.virtual:
            usage = self.strategy.usage()
            assert usage.backed == len(set(self.memory.mapping.values())) * self.strategy.memory.page_group_bytes
        return self.sample(launch, ends)

    def sample(self, launch: Launch, ends: list[list[str]]) -> np.ndarray:
        """A token from the prefix and the sampling stream; beams get candidates from the prefix alone."""
        sampled, ids, tokens = launch.sampled(), self.lanes.id[launch.lane_B[launch.sampled()]], []
        streams = (ids if launch.also is None else launch.also.id_M) >> BRANCH_BITS
        for b, stream, position in zip(sampled.tolist(), streams.tolist(), launch.positions().tolist(), strict=True):
            tokens.append((int(ends[b][position - 1][:8], 16) + stream) % VOCAB)
        if launch.choices is not None:
            links = [ends[sampled[row]][launch.positions()[row] - 1] for row in launch.choices.row_R.tolist()]
            launch.choices.take(
                *map(np.stack, zip(*(likely(link, launch.choices.count) for link in links), strict=True))
            )
        return np.array(tokens, np.int32)


def likely(link: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, log-probabilities) that follow a prefix, the best first."""
    rng = np.random.default_rng(int(link[:12], 16))
    logprobs = np.log(rng.dirichlet(np.full(VOCAB, 0.1)) + 1e-300)
    order = np.argsort(-logprobs, kind="stable")[:count]
    return order, logprobs[order]


@pytest.fixture
def shadow():
    """What follows a prefix: `chain` hashes prefixes, `likely` gives candidates."""
    return SimpleNamespace(chain=chain, likely=likely)


@pytest.fixture
def memory():
    def make(
        tokens: int,
        *,
        max_len: int = 64,
        max_seqs: int = 16,
        group_tokens: float = 8,
        chunk: int | None = None,
    ):
        token_bytes = 48
        return Memory(
            bytes=tokens * token_bytes,
            token_bytes=token_bytes,
            max_len=max_len,
            max_seqs=max_seqs,
            chunk=chunk or max_len,
            page_group_bytes=int(group_tokens * token_bytes),
        )

    return make


STRATEGIES = {
    "contiguous": lambda memory: Contiguous(memory),
    "paged": lambda memory: Paged(memory, 4),
    "paged1": lambda memory: Paged(memory, 1),
    "vattention": lambda memory: VAttention(memory),
    "vattention_ahead": lambda memory: VAttention(memory, map_ahead=1),
}
CACHING = {
    "prefix": lambda memory: Prefix(memory, 4),
    "prefix_dedupe": lambda memory: Prefix(memory, 4, duplicates="dedupe"),
    "radix": lambda memory: Radix(memory, 4, partial="copy"),
    "radix1": lambda memory: Radix(memory, 1, LFU(), evict="block"),
}


@pytest.fixture(params=STRATEGIES)
def make_strategy(request):
    return STRATEGIES[request.param]


@pytest.fixture(params=STRATEGIES | CACHING)
def make_any(request):
    return (STRATEGIES | CACHING)[request.param]


@pytest.fixture(params=CACHING)
def make_caching(request):
    return CACHING[request.param]


@pytest.fixture
def serve():
    """Run requests through an engine over shadow memory; returns the engine, already run.

    watch(scheduler, launch) is called before each launch, watch_moves(scheduler, moves, launch) too. It must end in
    `most` steps, where that is given. Options are the scheduler's axes and settings.
    """

    def run(strategy: Strategy, requests: list[Request], watch=None, watch_moves=None, most=None, **options) -> Engine:
        lanes = Lanes(strategy.memory.max_seqs, strategy.memory.max_len)
        axes = {"admission": PromptPlusOne(), "victim": Newest(), "forecast": Limit()} | options
        names = [field.name for field in fields(Settings)]
        settings = Settings(**{name: axes.pop(name) for name in names if name in axes})
        scheduler = Scheduler(strategy, lanes, settings=settings, **axes)
        executor = ShadowExecutor(strategy, lanes)
        carry_out = executor.run
        if watch is not None:
            executor.run = lambda moves, launch: watch(scheduler, launch) or carry_out(moves, launch)
        if watch_moves is not None:
            executor.run = lambda moves, launch: watch_moves(scheduler, moves, launch) or carry_out(moves, launch)
        engine = Engine(requests, scheduler, executor, StepClock(), Recorder(strategy, lambda: 0))
        if most is not None:
            assert any(not engine.step() for _ in range(most)), f"not over after {most:,} steps"
        engine.run()
        return engine

    return run


@pytest.fixture
def requests():
    """Random requests by seed: prompts and outputs of 1 to `longest` tokens together."""

    def make(count: int, longest: int, seed: int = 0, gap_s: float = 0.0) -> list[Request]:
        rng = np.random.default_rng(seed)
        made = []
        for index in range(count):
            prompt = int(rng.integers(1, longest))
            output = int(rng.integers(1, longest - prompt + 1))
            ids = rng.integers(0, VOCAB, prompt).astype(np.int32)
            made.append(Request(index, prompt, output, longest, index * gap_s, ids))
        return made

    return make


@pytest.fixture
def alike(requests):
    """The same, but each prompt begins as one of three others does, up to any token."""

    def make(count: int, longest: int, seed: int = 0, gap_s: float = 0.0) -> list[Request]:
        rng = np.random.default_rng(seed)
        made, common = requests(count, longest, seed, gap_s), rng.integers(0, VOCAB, (3, longest)).astype(np.int32)
        for request in made:
            same = int(rng.integers(0, request.prompt_len + 1))
            request.prompt[:same] = common[rng.integers(3), :same]
        return made

    return make
