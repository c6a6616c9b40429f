"""Traces of admit, extend, free and preempt for experiments/vllm_decisions.py, steered by one manager's decisions.

Requests are lists of segments: equal labels are equal tokens, so that shared beginnings, equal text behind different
beginnings and whole repeated requests can be written down in a few numbers. The scheduler is plain: it serves who
runs in order of arrival, preempts the newest where there is no room, then admits, and chunks prompts by a budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.workload import quantiles

Operation = tuple[str, int, int, int]  # admit: seq, known, new; extend: seq, length, upto; free, preempt: seq, 0, 0
WIDTH = 8192  # tokens a segment may have; token ids of two labels never meet


class Decision(NamedTuple):
    """What a manager did, as both sides write it down."""

    granted: int
    hit: int  # tokens, of an admit
    free: int  # blocks that nobody owns afterwards, cached or not
    evicted: list[int]  # blocks that left the cache, in order
    blocks: list[int]  # of an admit all, of an extend the new ones, in order


class Life(NamedTuple):
    """One request: the last segment is its output."""

    segments: list[tuple[int, int]]  # label, tokens
    arrival: int = 0  # step

    @property
    def ids(self) -> NDArray[np.int32]:
        return np.concatenate([label * WIDTH + np.arange(n, dtype=np.int32) for label, n in self.segments])

    @property
    def prompt(self) -> int:
        return sum(n for _, n in self.segments[:-1])


@dataclass(slots=True, eq=False)
class Running:
    seq: int
    known: int
    final: int
    stored: int = 0


def tree(seed: int, requests: int) -> list[Life]:
    """Three system prompts, six documents that stand behind any of them, questions of which a third repeats."""
    rng = Random(f"{seed} tree")
    lengths = {label: between(rng, 20, 110) for label in range(16)}
    lives, arrival, outputs = [], 0, dict[tuple[int, ...], int]()
    for number in range(requests):
        labels = [between(rng, 0, 2), between(rng, 3, 8)]
        labels.append(between(rng, 9, 15) if rng.random() < 1 / 3 else 100 + number)
        prompt = [(label, lengths.get(label) or between(rng, 1, 60)) for label in labels[: between(rng, 1, 3)]]
        # The same prompt is answered with the same words, at times cut short.
        answer = outputs.setdefault(tuple(label for label, _ in prompt), 100 + requests + number)
        lives.append(Life([*prompt, (answer, between(rng, 1, 120))], arrival))
        arrival += between(rng, 1, 14) if rng.random() < 0.5 else 0
    return lives


def from_lengths(table: str, seed: int, requests: int, scale: float) -> list[Life]:
    """Prompts and outputs as long as a public trace's; nothing is shared, but preempted ones meet their own blocks."""
    rows = quantiles.draw(table, requests, seed).scaled(scale)
    pairs = zip(rows.prompt, rows.output, strict=True)
    return [Life([(2 * i, prompt), (2 * i + 1, output)], 8 * i) for i, (prompt, output) in enumerate(pairs)]


def between(rng: Random, low: int, high: int) -> int:
    """low to high, from random() alone: Python keeps that the same in every version."""
    return low + int(rng.random() * (high - low + 1))


class Scheduler:
    """`decide` is the manager that steers; `lookup(seq, known)` its hit for an arrival, in tokens."""

    def __init__(
        self,
        lives: list[Life],
        decide: Callable[[Operation], Decision],
        lookup: Callable[[int, int], int],
        seed: int = 0,
        budget: int = 64,
        most: int = 32,
    ) -> None:
        self.decide, self.lookup, self.budget, self.most = decide, lookup, budget, most
        self.coming = deque(enumerate(lives))
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.rng = Random(f"{seed} aborts")
        self.done: list[tuple[Operation, Decision]] = []

    def steps(self) -> Iterator[list[tuple[Operation, Decision]]]:
        """The operations of one step after another, with what the leading manager decided."""
        step = 0
        while self.coming or self.waiting or self.running:
            while self.coming and self.coming[0][1].arrival <= step:
                seq, life = self.coming.popleft()
                self.waiting.append(Running(seq, life.prompt, len(life.ids)))
            self.done = []
            left = self.serve()
            if not any(name == "preempt" for (name, *_), _ in self.done):
                self.admit(left)
            self.finish()
            yield self.done
            step += 1

    def serve(self) -> int:
        """Grow everyone who runs; what is left of the budget."""
        left = self.budget
        for run in list(self.running):
            new = min(run.known - run.stored, left)
            while new and run in self.running:
                if self.ask("extend", run.seq, run.stored, run.stored + new).granted:
                    run.stored += new
                    left -= new
                    break
                self.preempt(self.running[-1])
        return left

    def admit(self, left: int) -> None:
        while self.waiting and left and len(self.running) < self.most:
            run = self.waiting[0]
            new = min(left, run.known - self.lookup(run.seq, run.known))
            decision = self.ask("admit", run.seq, run.known, new)
            if not decision.granted:
                return
            self.running.append(self.waiting.popleft())
            run.stored = decision.hit + new
            left -= new

    def finish(self) -> None:
        """A token for everyone whose tokens are all stored; the last token of a request is never stored."""
        for run in list(self.running):
            run.known += run.stored == run.known
            if run.known == run.final or self.rng.random() < 0.001:  # done, or its client hung up
                self.running.remove(run)
                self.ask("free", run.seq, 0, 0)

    def preempt(self, run: Running) -> None:
        self.ask("preempt", run.seq, 0, 0)
        self.running.remove(run)
        self.waiting.appendleft(run)
        run.stored = 0

    def ask(self, *operation: str | int) -> Decision:
        decision = self.decide(operation)  # type: ignore[arg-type]
        self.done.append((operation, decision))  # type: ignore[arg-type]
        return decision
